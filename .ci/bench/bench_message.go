package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// sender is an agent without a node: it signs and posts.
type sender struct {
	id       wire.AgentID
	key      *signing.PrivateKey
	conv     wire.ConversationID
	talk     int // messages in one conversation
	messages int
}

// talkLength is how many messages a conversation has that is not about conversations.
const talkLength = 64

// payload is the payload of every message; with its envelope it has about 700 bytes.
var payload = wire.Obj(
	wire.TextField("action", "deliver"),
	wire.Field("message", wire.Obj(
		wire.TextField("subject", "Thursday"),
		wire.TextField("body", strings.Repeat("Shall we meet at the old mill? ", 8)),
		wire.TextField("priority", "normal"),
	)),
)

// nextMessage returns the sender's next message, signed.
func (s *sender) nextMessage(to wire.AgentID, now time.Time) ([]byte, error) {
	if s.messages%s.talk == 0 {
		s.conv = wire.NewConversationID()
	}
	s.messages++
	signed, err := s.key.SignValue(wire.Draft{
		ID: wire.NewMessageID(), Conversation: s.conv, From: s.id, To: to, Time: now, Intent: wire.Deliver, Payload: payload,
	}.Tree())
	if err != nil {
		return nil, err
	}
	return signed.JSON(), nil
}

// prepareMessage registers a sender for each worker and sends its first message, so that the recipient knows the sender.
// It returns the traffic of further messages.
func (b *bench) prepareMessage(ctx context.Context) (traffic, error) {
	t := traffic{base: b.endpoint, status: http.StatusOK}
	recipient, key, err := b.fetchRecipient(ctx)
	if err != nil {
		return t, err
	}
	directory := client.NewDirectory(b.directory.String(), client.NewHTTP(client.HTTPConfig{Local: true}), nil)
	senders := make([]sender, b.workers)
	for i := range senders {
		if senders[i], err = newSender(ctx, directory, fmt.Sprintf("%s sender %d", b.corpus.prefix, i)); err != nil {
			return t, err
		}
		senders[i].talk = b.talk
	}
	t.request = func(w int) ([]byte, error) {
		body, err := senders[w].nextMessage(recipient, time.Now())
		if err != nil {
			return nil, err
		}
		return request(http.MethodPost, b.endpoint, b.endpoint.EscapedPath(), body), nil
	}
	t.check = func(w int, a answer) error {
		if senders[w].messages%b.talk != 1%b.talk {
			return nil
		}
		return checkReply(a.Body, senders[w].id, recipient, key)
	}
	for w := range senders {
		if err := b.introduce(ctx, t, w); err != nil {
			return t, fmt.Errorf("first message of sender %d: %w", w, err)
		}
	}
	return t, nil
}

// fetchRecipient returns the id and the key on the card at the endpoint.
func (b *bench) fetchRecipient(ctx context.Context) (wire.AgentID, *signing.PublicKey, error) {
	a, err := sendOnce(ctx, b.endpoint, request(http.MethodGet, b.endpoint, b.endpoint.EscapedPath(), nil), http.StatusOK)
	if err != nil {
		return "", nil, fmt.Errorf("read the card at the endpoint: %w", err)
	}
	card, err := wire.ParseObject(a.Body)
	if err != nil {
		return "", nil, fmt.Errorf("read the card at the endpoint: %w", err)
	}
	key, err := signing.ParsePublicKey(card.GetStr("public_key"))
	return wire.AgentID(card.GetStr("agent_id")), key, err
}

// newSender registers a sender, whose key is derived from the name.
func newSender(ctx context.Context, directory *client.Directory, name string) (sender, error) {
	key := newKey(name)
	id := key.private.Public().AgentID()
	card, err := wire.ParseObject(cardJSON(id, "Sender", "Measures.", endpointOf(id), key.text, []string{"measuring"}, []string{string(wire.Deliver)}))
	if err != nil {
		return sender{}, err
	}
	_, stored, err := directory.Register(ctx, card, benchCredential, key.private)
	if err != nil {
		return sender{}, fmt.Errorf("register %s: %w", name, err)
	}
	return sender{id: wire.AgentID(stored.GetStr("agent_id")), key: key.private}, nil
}

// introduce sends the first message of a sender. A node limits its look-ups of strangers' cards (AM-43), so introduce
// waits and retries if the node asks for it.
func (b *bench) introduce(ctx context.Context, t traffic, w int) error {
	c := httpClient{base: t.base}
	defer c.close()
	for {
		req, err := t.request(w)
		if err != nil {
			return err
		}
		a, err := c.exchange(ctx, req)
		switch {
		case err != nil:
			return err
		case a.Status == http.StatusOK:
			return t.check(w, a)
		case a.Status != http.StatusTooManyRequests:
			return fmt.Errorf("status %d: %.200s", a.Status, a.Body)
		}
		seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
		if err != nil || seconds > 60 {
			return fmt.Errorf("refused: %.200s", a.Body)
		}
		if err := sleep(ctx, time.Duration(seconds)*time.Second); err != nil {
			return err
		}
	}
}

// checkReply returns an error unless body is a reply from the replier to the asker, signed with key.
func checkReply(body []byte, asker, replier wire.AgentID, key *signing.PublicKey) error {
	tree, err := wire.ParseObject(body)
	if err != nil {
		return fmt.Errorf("reply: %w", err)
	}
	m, err := wire.ParseMessage(tree)
	if err != nil {
		return fmt.Errorf("reply: %w", err)
	}
	if m.From != replier || m.To != asker {
		return fmt.Errorf("reply is from %s to %s", m.From, m.To)
	}
	now := time.Now()
	_, err = key.VerifyValue(tree.Without("signature"), m.Signature, signing.Window{From: now.Add(-time.Minute), To: now.Add(time.Minute)}, now)
	return err
}

// makeProof returns the header that proves the key of a card at its registration (AM-62).
func (b *bench) makeProof(card []byte, key keyPair) (string, error) {
	tree, err := wire.ParseObject(card)
	if err != nil {
		return "", err
	}
	stamp := wire.FormatTime(time.Now())
	sig, err := key.private.Sign(wire.KeyProofText(http.MethodPost, b.path("/agents"), b.directory.String(), stamp, signing.Digest(tree)))
	if err != nil {
		return "", err
	}
	return wire.KeyProof{Stamp: stamp, Signature: sig}.Header(), nil
}
