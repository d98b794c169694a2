package meshtest

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Stranger is an agent without a node: it signs and posts what the test wants.
type Stranger struct {
	Name string
	ID   wire.AgentID
	Key  *signing.PrivateKey

	t testing.TB
}

// deadURL is the base URL of a server that does not exist.
const deadURL = "http://127.0.0.1:9"

// Stranger registers an agent whose endpoint does not answer.
func (m *Mesh) Stranger(name string) *Stranger {
	m.t.Helper()
	return m.Tenant(name, "credential-of-"+name)
}

// Tenant makes an agent like Stranger, which may share its directory credential with other agents.
func (m *Mesh) Tenant(name, credential string) *Stranger {
	m.t.Helper()
	endpoint := deadURL
	if m.wire != nil {
		endpoint = m.wire.url(name)
	}
	card := Card(m.t, name, endpoint+"/agentmesh")
	m.register(name, card, credential)
	return &Stranger{Name: name, ID: card.ID, Key: Key(name), t: m.t}
}

// Forger returns an agent with the id of s that signs with the key of name: an attacker, or s after it lost its key.
func (s *Stranger) Forger(name string) *Stranger {
	return &Stranger{Name: name, ID: s.ID, Key: Key(name), t: s.t}
}

// Draft returns a message of the stranger to an agent, with a new id in a new conversation.
func (s *Stranger) Draft(to wire.AgentID, intent wire.Intent, payload string) wire.Draft {
	s.t.Helper()
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		s.t.Fatalf("payload %s: %v", payload, err)
	}
	return wire.Draft{
		ID: wire.NewMessageID(), Conversation: wire.NewConversationID(), From: s.ID, To: to,
		Time: time.Now(), Intent: intent, Payload: v,
	}
}

// Sign returns the bytes of the signed message.
func (s *Stranger) Sign(d wire.Draft) []byte { return s.SignTree(d.Tree()) }

// SignTree signs any tree.
func (s *Stranger) SignTree(tree wire.Value) []byte {
	s.t.Helper()
	signed, err := s.Key.SignValue(tree)
	if err != nil {
		s.t.Fatalf("sign: %v", err)
	}
	return signed.JSON()
}

// Answer is the response of an endpoint.
type Answer struct {
	Status int
	Body   []byte
	Header http.Header
}

// Post sends bytes to an endpoint.
func Post(t testing.TB, url string, body []byte) Answer {
	t.Helper()
	resp, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatalf("post: %v", err)
	}
	return readAnswer(t, resp)
}

func readAnswer(t testing.TB, resp *http.Response) Answer {
	t.Helper()
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read answer: %v", err)
	}
	return Answer{Status: resp.StatusCode, Body: data, Header: resp.Header}
}

// Code returns the error code of the response, or "" if it is not an error.
func (a Answer) Code() wire.Code {
	v, err := wire.ParseObject(a.Body)
	if err != nil {
		return ""
	}
	e, ok := wire.ParseError(a.Status, v)
	if !ok {
		return ""
	}
	return e.Code
}

// Message parses the response as a message, and verifies that sender signed it.
func (a Answer) Message(t testing.TB, sender *Member) wire.Message {
	t.Helper()
	v, err := wire.ParseObject(a.Body)
	if err != nil {
		t.Fatalf("answer %s: %v", a.Body, err)
	}
	m, err := wire.ParseMessage(v)
	if err != nil {
		t.Fatalf("answer %s: %v", a.Body, err)
	}
	now := time.Now()
	window := signing.Window{From: now.Add(-time.Hour), To: now.Add(time.Hour)}
	if _, err := Key(sender.Name).Public().VerifyValue(v.Without("signature"), m.Signature, window, now); err != nil {
		t.Fatalf("answer %s: %v", a.Body, err)
	}
	return m
}
