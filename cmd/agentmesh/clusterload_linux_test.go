//go:build slow || clockstep

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// The kinds of acknowledged writes.
const (
	ackCard     = "registration"
	ackMessage  = "message"
	ackApproval = "approval"
	ackNumbered = "numbered message" // a message that the agent sends, accepted by the owner API
	ackMail     = "mail"
	arrival     = "arrival" // of a numbered message at its recipient, and not an acknowledgement
)

const (
	loadPeers      = 8
	numberedBatch  = 12              // numbered messages of a conversation
	numberedAhead  = 400             // numbered messages that may be on the way
	repeatFor      = 3 * time.Minute // longer than a fault of TestDatabaseTrouble
	outageTolerate = 5 * time.Second // the promise for a fault: service is back
)

// clusterLoad writes what a cluster can store, each time at another process, and records acknowledgements.
type clusterLoad struct {
	t     *testing.T
	c     *cluster
	http  *client.HTTP
	peers []*signing.PrivateKey
	front *httptest.Server // endpoint of the peers

	mu          sync.Mutex
	total       map[string]int       // acknowledgements by kind
	last        map[string]time.Time // time of the newest acknowledgement
	longest     map[string]time.Duration
	refusals    map[string]int // answers that refused a write, by kind and status
	cards       []wire.AgentID
	messages    []roundTrip
	approvals   map[string]bool
	lateReplies map[string][]wire.MessageID
	numbered    map[string]int      // acknowledged numbered messages by conversation; their numbers are 0 to n-1
	arrived     map[string][]string // message ids of the numbered messages of a conversation, in the order of their first arrival
	repeated    int                 // numbered messages that came again with the same id
	mailboxes   []*loadMailbox
}

// loadMailbox is a mailbox with one sender, and what the directory acknowledged.
type loadMailbox struct {
	credential  client.Credential
	box, sender *signing.PrivateKey
	stored      map[string][]byte // messages by relay id
	removed     map[string]bool   // relay ids that the reader has acknowledged
}

func newClusterLoad(t *testing.T, c *cluster) *clusterLoad {
	l := &clusterLoad{
		t: t, c: c, http: client.NewHTTP(client.HTTPConfig{Local: true}), total: map[string]int{}, last: map[string]time.Time{},
		longest: map[string]time.Duration{}, refusals: map[string]int{}, approvals: map[string]bool{}, lateReplies: map[string][]wire.MessageID{},
		numbered: map[string]int{}, arrived: map[string][]string{},
	}
	t.Cleanup(l.http.Close)
	l.front = httptest.NewServer(http.HandlerFunc(l.receive))
	t.Cleanup(l.front.Close)
	for i := range loadPeers {
		key, err := signing.GenerateEd25519()
		if err != nil {
			t.Fatal(err)
		}
		l.peers = append(l.peers, key)
		credential := client.Credential(fmt.Sprint("the-credential-of-peer-", i))
		if _, _, err := l.directory().Register(t.Context(), loadCard(key, l.front.URL+"/"+strconv.Itoa(i)), credential, key); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l *clusterLoad) directory() *client.Directory {
	return client.NewDirectory(l.c.front.URL+"/v1", l.http, nil)
}

func (l *clusterLoad) ack(kind string) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total[kind]++
	if last := l.last[kind]; !last.IsZero() {
		l.longest[kind] = max(l.longest[kind], now.Sub(last))
	}
	l.last[kind] = now
}

func (l *clusterLoad) acknowledged() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind, count := range l.total {
		if kind != arrival {
			n += count
		}
	}
	return n
}

// gaps returns the longest time between two acknowledgements of each kind since the last call.
func (l *clusterLoad) gaps() map[string]time.Duration {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	gaps := maps.Clone(l.longest)
	for kind, last := range l.last {
		gaps[kind] = max(gaps[kind], now.Sub(last)).Round(time.Millisecond)
	}
	clear(l.longest)
	return gaps
}

// receive is the endpoint of the peers. It records numbered messages, and replies to held messages.
func (l *clusterLoad) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	v, err := wire.ParseObject(body)
	if err != nil {
		return
	}
	m, err := wire.ParseMessage(v)
	if err != nil {
		return
	}
	w.WriteHeader(http.StatusNoContent)
	l.mu.Lock()
	if to := m.Meta("in_reply_to"); to != "" {
		if !slices.Contains(l.lateReplies[to], m.ID) {
			l.lateReplies[to] = append(l.lateReplies[to], m.ID)
		}
		l.mu.Unlock()
		return
	}
	conv, seen := string(m.Conversation), l.arrived[string(m.Conversation)]
	payload, _ := v.Get("payload")
	message, _ := payload.Get("message")
	entry := message.GetStr("body") + " " + string(m.ID)
	if slices.Contains(seen, entry) {
		l.repeated++
		l.mu.Unlock()
		return
	}
	l.arrived[conv] = append(seen, entry)
	l.mu.Unlock()
	l.ack(arrival)
}

// run writes until the context ends. The pauses leave processor time to the instances and their database.
func (l *clusterLoad) run(ctx context.Context, work *sync.WaitGroup) {
	forever := func(n int, step func(context.Context)) {
		for range n {
			work.Go(func() {
				for ctx.Err() == nil {
					step(ctx)
					time.Sleep(50 * time.Millisecond)
				}
			})
		}
	}
	forever(2, l.register)
	forever(4, func(ctx context.Context) {
		l.message(ctx, wire.Deliver, `{"action":"deliver","message":{"body":"hi"}}`)
	})
	forever(1, func(ctx context.Context) {
		l.message(ctx, wire.Negotiate, `{"action":"propose","terms":{"description":"a deal"}}`)
	})
	forever(1, l.approve)
	forever(4, l.sendNumbered)
	forever(2, l.useMailbox)
}

// repeat calls try until try returns true or the context ends. Each call reaches another process.
func (l *clusterLoad) repeat(ctx context.Context, what string, try func(context.Context) bool) bool {
	for begun := time.Now(); ctx.Err() == nil; {
		attempt, cancel := context.WithTimeout(ctx, impatient.Timeout)
		done := try(attempt)
		cancel()
		if done {
			return true
		}
		if time.Since(begun) > repeatFor {
			l.t.Errorf("%s was not acknowledged for %v", what, repeatFor)
			return false
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return false
}

func (l *clusterLoad) post(ctx context.Context, kind, url string, body []byte) (status int, answer []byte) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := impatient.Do(req)
	if err != nil {
		return 0, nil // the process is gone or stands still
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	if resp.StatusCode >= 300 && resp.StatusCode != http.StatusBadGateway { // the reverse proxy finds no process
		l.refuse(kind, resp.StatusCode, resp.Header)
	}
	return resp.StatusCode, answer
}

// refuse counts an answer that refuses. Only 503 with a time for the next attempt is right.
func (l *clusterLoad) refuse(kind string, status int, h http.Header) {
	what := fmt.Sprint(kind, " ", status)
	if status == http.StatusServiceUnavailable && h.Get("Retry-After") == "" {
		what += " without Retry-After"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refusals[what]++
}

func (l *clusterLoad) register(ctx context.Context) {
	key, err := signing.GenerateEd25519()
	if err != nil {
		l.t.Error(err)
		return
	}
	l.registerCard(ctx, key, "http://127.0.0.1:9/agentmesh", client.NewCredential())
}

func (l *clusterLoad) registerCard(ctx context.Context, key *signing.PrivateKey, endpoint string, credential client.Credential) bool {
	card := loadCard(key, endpoint)
	return l.repeat(ctx, ackCard, func(ctx context.Context) bool {
		reg, _, err := l.directory().Register(ctx, card, credential, key)
		if err != nil {
			l.refuseError(ackCard, err)
			return false
		}
		l.mu.Lock()
		l.cards = append(l.cards, reg.AgentID)
		l.mu.Unlock()
		l.ack(ackCard)
		return true
	})
}

// message sends a message in a new conversation, and repeats the same bytes until there is an answer.
func (l *clusterLoad) message(ctx context.Context, intent wire.Intent, payload string) {
	l.mu.Lock()
	from := l.peers[len(l.messages)%len(l.peers)]
	l.mu.Unlock()
	sent, err := signMessage(from, l.c.next().info.AgentID, wire.NewConversationID(), intent, payload)
	if err != nil {
		l.t.Error(err)
		return
	}
	l.repeat(ctx, ackMessage, func(ctx context.Context) bool {
		status, answer := l.post(ctx, ackMessage, l.c.front.URL+"/agentmesh", sent)
		if status != http.StatusOK && status != http.StatusAccepted {
			return false
		}
		l.mu.Lock()
		l.messages = append(l.messages, roundTrip{sent, status, answer})
		l.mu.Unlock()
		l.ack(ackMessage)
		return true
	})
}

func signMessage(from *signing.PrivateKey, to wire.AgentID, conv wire.ConversationID, intent wire.Intent, payload string) ([]byte, error) {
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		return nil, err
	}
	signed, err := from.SignValue(wire.Draft{
		ID: wire.NewMessageID(), Conversation: conv, From: from.Public().AgentID(), To: to, Time: time.Now(), Intent: intent, Payload: v,
	}.Tree())
	if err != nil {
		return nil, err
	}
	return signed.JSON(), nil
}

func (l *clusterLoad) approve(ctx context.Context) {
	var page owner.List[acl.Ask]
	l.repeat(ctx, "the list of approvals", func(ctx context.Context) bool {
		_, o := l.c.nextOwner()
		raw, err := o.Call(ctx, "GET", "approvals", owner.Params("state", "pending", "limit", "5"), nil)
		if err == nil {
			page, err = daemon.Decode[owner.List[acl.Ask]](raw)
		}
		return err == nil
	})
	if len(page.Items) == 0 {
		<-time.After(20 * time.Millisecond)
	}
	for _, k := range page.Items {
		l.repeat(ctx, ackApproval, func(ctx context.Context) bool {
			_, o := l.c.nextOwner()
			if _, err := decideApproval(ctx, o, k.ID, owner.Decision{Choice: acl.Approve, Hash: k.Hash}); err != nil {
				raw, err := o.Call(ctx, "GET", "approvals/"+url.PathEscape(k.ID), nil, nil)
				if err != nil {
					return false
				}
				ask, err := daemon.Decode[acl.Ask](raw)
				return err == nil && ask.State != acl.AskPending // an attempt without an answer has worked
			}
			l.mu.Lock()
			l.approvals[k.ID] = true
			l.mu.Unlock()
			l.ack(ackApproval)
			return true
		})
	}
}

// sendNumbered sends numbered messages in a new conversation, each at another process, until a call has no answer.
func (l *clusterLoad) sendNumbered(ctx context.Context) {
	l.mu.Lock()
	to, ahead := l.peers[len(l.numbered)%len(l.peers)].Public().AgentID(), l.total[ackNumbered]-l.total[arrival]
	l.mu.Unlock()
	if ahead > numberedAhead {
		<-time.After(20 * time.Millisecond)
		return
	}
	conv := string(wire.NewConversationID())
	for n := range numberedBatch {
		attempt, cancel := context.WithTimeout(ctx, impatient.Timeout)
		_, o := l.c.nextOwner()
		_, err := o.Call(attempt, "POST", "send", nil, map[string]any{
			"to": to, "conversation": conv, "intent": wire.Deliver,
			"payload": map[string]any{"action": "deliver", "message": map[string]string{"body": strconv.Itoa(n)}},
		})
		cancel()
		if err != nil {
			<-time.After(50 * time.Millisecond)
			return
		}
		l.mu.Lock()
		l.numbered[conv] = n + 1
		l.mu.Unlock()
		l.ack(ackNumbered)
	}
}

// useMailbox makes a mailbox, writes to it and reads it, each time at another process.
func (l *clusterLoad) useMailbox(ctx context.Context) {
	box := &loadMailbox{credential: client.NewCredential(), stored: map[string][]byte{}, removed: map[string]bool{}}
	for _, key := range []**signing.PrivateKey{&box.box, &box.sender} {
		var err error
		if *key, err = signing.GenerateEd25519(); err != nil {
			l.t.Error(err)
			return
		}
		if !l.registerCard(ctx, *key, l.c.front.URL+"/v1/mailbox/"+string((*key).Public().AgentID()), box.credential) {
			return
		}
	}
	l.mu.Lock()
	l.mailboxes = append(l.mailboxes, box)
	l.mu.Unlock()
	for n := 0; n < 40 && ctx.Err() == nil; n++ { // one sender may fill a tenth of a mailbox
		l.writeMail(ctx, box)
		if n%4 == 3 {
			l.removeMail(ctx, box)
		}
	}
}

// writeMail writes one message to a mailbox, and repeats the same bytes until the message is stored.
func (l *clusterLoad) writeMail(ctx context.Context, b *loadMailbox) {
	to := b.box.Public().AgentID()
	sent, err := signMessage(b.sender, to, wire.NewConversationID(), wire.Deliver, `{"action":"deliver"}`)
	if err != nil {
		l.t.Error(err)
		return
	}
	l.repeat(ctx, ackMail, func(ctx context.Context) bool {
		status, answer := l.post(ctx, ackMail, l.c.front.URL+"/v1"+"/mailbox/"+string(to), sent)
		var receipt struct {
			RelayID string `json:"relay_id"`
		}
		if status != http.StatusAccepted || json.Unmarshal(answer, &receipt) != nil || receipt.RelayID == "" {
			return false
		}
		l.mu.Lock()
		b.stored[receipt.RelayID] = sent
		l.mu.Unlock()
		l.ack(ackMail)
		return true
	})
}

// removeMail acknowledges one of the messages that wait in a mailbox.
func (l *clusterLoad) removeMail(ctx context.Context, b *loadMailbox) {
	l.mu.Lock()
	var id string
	for id = range b.stored {
		if !b.removed[id] {
			break
		}
	}
	if id != "" {
		b.removed[id] = true
	}
	l.mu.Unlock()
	if l.repeat(ctx, "the removal of mail", func(ctx context.Context) bool {
		return l.directory().Acknowledge(ctx, b.credential, id) == nil
	}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(b.removed, id) // the test ended, so nobody knows whether the message is still there
	delete(b.stored, id)
}

// refuseError counts an error of the directory client, unless the directory was unreachable.
func (l *clusterLoad) refuseError(kind string, err error) {
	if text := err.Error(); !strings.Contains(text, "unreachable") {
		l.mu.Lock()
		l.refusals[kind+" "+text]++
		l.mu.Unlock()
	}
}
