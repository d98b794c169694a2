//go:build slow

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// TestRelayCrash kills the real process with SIGKILL while it accepts mail and acknowledgements. Afterwards, the
// mailbox has every accepted message once and byte for byte, except those that its reader acknowledged.
func TestRelayCrash(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGKILL on Windows")
	}
	if testing.Short() {
		t.Skip("-short")
	}
	c := newCrash(t)
	var boxes []*mailUser
	accepted, read := 0, 0
	for range crashRounds {
		c.serve("--roles=directory")
		boxes = append(boxes, c.mailLoad(crashLoad)...)
	}
	c.serve("--roles=directory")
	for _, b := range boxes {
		b.audit(c)
		accepted, read = accepted+len(b.accepted), read+len(b.read)
	}
	t.Logf("the relay accepted %d messages for %d mailboxes; their readers acknowledged %d", accepted, len(boxes), read)
}

// TestRelayStops: if a process stops during a pass-through, the sender gets a receipt, and the mail survives.
func TestRelayStops(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGTERM on Windows")
	}
	c := newCrash(t)
	c.serve("--roles=directory")
	u, err := c.newMailUser(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	polled, wrote := make(chan []client.RelayItem, 1), make(chan error, 1)
	go func() {
		items, err := c.directory().Mail(t.Context(), u.credential, u.box.Public().AgentID(), "", 30*time.Second, false)
		if err != nil {
			t.Error(err)
		}
		polled <- items // and no reply
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := poll(ctx, "the reader is not connected", func() (bool, error) {
		resp, err := http.Get(c.server.info.URL + "/health")
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		health, err := io.ReadAll(resp.Body)
		return bytes.Contains(health, []byte(`"connected":1`)), err
	}); err != nil {
		t.Fatal(err)
	}
	go func() { wrote <- u.write(t.Context(), c) }()
	if items := <-polled; len(items) != 1 || items[0].ReplyBy.IsZero() {
		t.Fatalf("the poll gets %+v", items)
	}
	if err := c.server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil || len(u.accepted) != 1 {
		t.Errorf("the sender gets %d receipts, %v", len(u.accepted), err)
	}
	if err := c.server.Wait(); err != nil {
		t.Errorf("the process ends with %v", err)
	}
	c.owner.Close()
	c.serve("--roles=directory")
	u.audit(c)
}

// mailUser is a mailbox with one sender, and the answers that both got.
type mailUser struct {
	credential  client.Credential
	box, sender *signing.PrivateKey
	accepted    map[string][]byte // sent messages by relay id
	read        []string          // relay ids whose acknowledgement got an answer
	inDoubt     string            // the relay id whose acknowledgement got no answer
}

// mailLoad writes to and reads many mailboxes for d, and then kills the process while the calls are running.
func (c *crash) mailLoad(d time.Duration) []*mailUser {
	ctx, cancel := context.WithCancel(c.t.Context())
	var mu sync.Mutex
	var all []*mailUser
	var read atomic.Bool // a message was read, and therefore also accepted
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for ctx.Err() == nil {
				u, err := c.newMailUser(ctx)
				if err != nil {
					return // the process has been killed
				}
				mu.Lock()
				all = append(all, u)
				mu.Unlock()
				for n := 0; n < 40 && err == nil; n++ { // one sender may fill a tenth of a mailbox
					err = u.write(ctx, c)
					if n%4 == 3 && err == nil {
						if err = u.readOne(ctx, c); err == nil {
							read.Store(true)
						}
					}
				}
				if err != nil {
					return
				}
			}
		})
	}
	waitForLoad(c.t, d, read.Load)
	c.kill()
	cancel()
	work.Wait()
	return all
}

func (c *crash) newMailUser(ctx context.Context) (*mailUser, error) {
	u := &mailUser{credential: client.NewCredential(), accepted: make(map[string][]byte)}
	for _, key := range []**signing.PrivateKey{&u.box, &u.sender} {
		var err error
		if *key, err = signing.GenerateEd25519(); err != nil {
			return nil, err
		}
		card := loadCard(*key, c.server.info.Directory+"/mailbox/"+string((*key).Public().AgentID()))
		if _, _, err := c.directory().Register(ctx, card, u.credential, *key); err != nil {
			return nil, err
		}
	}
	return u, nil
}

func (u *mailUser) write(ctx context.Context, c *crash) error {
	to := u.box.Public().AgentID()
	signed, err := u.sender.SignValue(wire.Draft{
		ID: wire.NewMessageID(), Conversation: wire.NewConversationID(), From: u.sender.Public().AgentID(), To: to, Time: time.Now(),
		Intent: wire.Deliver, Payload: wire.Obj(wire.Member{Key: "action", Value: wire.Text("deliver")}),
	}.Tree())
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.server.info.Directory+"/mailbox/"+string(to), bytes.NewReader(signed.JSON()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var receipt struct {
		RelayID string `json:"relay_id"`
	}
	if err := json.Unmarshal(answer, &receipt); err != nil || resp.StatusCode != http.StatusAccepted || !strings.HasPrefix(receipt.RelayID, "relay_") {
		c.t.Errorf("the mailbox answers %d %s", resp.StatusCode, answer)
	}
	u.accepted[receipt.RelayID] = signed.JSON()
	return nil
}

// readOne acknowledges one of the waiting messages.
func (u *mailUser) readOne(ctx context.Context, c *crash) error {
	for id := range u.accepted {
		if slices.Contains(u.read, id) {
			continue
		}
		if u.inDoubt = id; c.directory().Acknowledge(ctx, u.credential, id) != nil {
			return context.Canceled
		}
		u.read, u.inDoubt = append(u.read, id), ""
		return nil
	}
	return nil
}

// audit compares the mailbox with the answers of the relay.
func (u *mailUser) audit(c *crash) {
	items, err := c.directory().Mail(c.t.Context(), u.credential, u.box.Public().AgentID(), "", 0, false)
	if err != nil {
		c.t.Fatal(err)
	}
	want := maps.Clone(u.accepted)
	for _, id := range u.read {
		delete(want, id)
	}
	unknown := 0
	for _, item := range items {
		switch sent, known := want[item.ID]; {
		case known && !bytes.Equal(sent, item.Message):
			c.t.Errorf("%s is %s, sent was %s", item.ID, item.Message, sent)
		case slices.Contains(u.read, item.ID):
			c.t.Errorf("%s waits again after it was acknowledged", item.ID)
		case !known:
			unknown++ // the message was stored, but its sender got no answer
		}
		delete(want, item.ID)
	}
	delete(want, u.inDoubt)
	if len(want) > 0 || unknown > 1 {
		c.t.Errorf("%d messages are lost, %d were never sent", len(want), unknown)
	}
}
