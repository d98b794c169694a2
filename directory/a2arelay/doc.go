// Package a2arelay takes A2A calls for agents without a public address. A directory serves it beside their mailboxes: a
// caller sends a message to /a2a/AGENT, the relay stores it as a task and answers, and the agent takes the message when
// it reads its mail. The agent sends the states of the task back, and the relay keeps them for the caller.
//
// The relay does not decide who may call; it only limits size and number. The agent knows its callers: it gets the
// SHA-256 of a caller's bearer token with each message. The relay keeps this hash too, and shows a task only to callers
// with the same token.
//
// Start with [New] and [Service.Mount]. Decision 51 explains the design.
package a2arelay

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Config configures a service. All fields except Addresses are required.
type Config struct {
	BaseURL   string // of the directory, "https://directory.example.com/v1"
	Records   store.Records
	Addresses *httpapi.Addresses // limits the callers by address; nil for no limits
	// Agent returns a live card, parsed and as stored, if its endpoint is its mailbox here. Otherwise it returns
	// [wire.ErrNoAgent].
	Agent func(ctx context.Context, id wire.AgentID) (wire.Card, store.Card, error)
	// CheckBan returns [wire.ErrBanned] if the operator has banned the address of a caller.
	CheckBan func(ctx context.Context, client netip.Addr) error
	// ParseKey parses the public key of a card.
	ParseKey func(text string) (*signing.PublicKey, error)
	// Queue stores a call as the mail m, in one transaction with changes, within the bounds of the mailbox. It
	// ignores m.Created and uses the current time. The call is durable when Queue returns.
	Queue func(ctx context.Context, m mailbox.Mail, call []byte, changes []store.Change) (relayID string, err error)
	// Secret returns a key of this directory that never changes.
	Secret func(ctx context.Context) ([]byte, error)
}

// Service relays A2A calls. It is safe for concurrent use.
type Service struct {
	cfg    Config
	origin string
	counts mailbox.Counts // of the tasks
	hub    door.Hub
	front  *door.Door
}

const (
	pathPrefix = "/a2a/"

	// HeaderAnswerToken authenticates the answer to a call. It is the header in which push notifications of A2A carry
	// the token of their receiver.
	HeaderAnswerToken = "X-A2A-Notification-Token"

	maxCard   = 64 << 10
	maxResult = wire.MaxMessage     // bytes of a task as the agent reports it
	cardLife  = 45 * 24 * time.Hour // of an A2A card, from its last upload

	streamFor = 10 * time.Minute // longest stream; then the client subscribes again
)

// New returns a service. It starts nothing.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg, origin: strings.TrimSuffix(cfg.BaseURL, "/v1"), hub: door.Hub{OfTask: maxWaitersOfTask}}
	s.front = door.New(door.Config{Open: s.open, Hub: &s.hub, StreamFor: streamFor})
	return s
}

// Mount adds the A2A routes for callers and, behind guard, two routes for the agents.
func (s *Service) Mount(e *echo.Echo, guard echo.MiddlewareFunc) {
	e.POST(pathPrefix+":id", s.serve)
	for _, method := range []string{"GET", "POST", "DELETE"} {
		e.Add(method, pathPrefix+":id/*", s.serve, httpapi.AnyOrigin)
	}
	e.PUT("/v1/mailbox/:id/a2a", guard(s.putCard))
	e.POST("/v1/relay/:relay/task", guard(s.postTask))
}

func (s *Service) url(id wire.AgentID) string { return s.origin + pathPrefix + string(id) }

// macOf returns the HMAC of texts in hex. Nobody can compute it without the secret.
func (s *Service) macOf(ctx context.Context, texts ...string) (string, error) {
	secret, err := s.cfg.Secret(ctx)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, secret)
	for _, text := range append([]string{"agentmesh-a2a-relay-v1"}, texts...) {
		mac.Write([]byte(text + "\x00"))
	}
	return hex.EncodeToString(mac.Sum(nil)[:16]), nil
}

// caller is the client that makes an A2A call.
type caller struct {
	token    string         // SHA-256 of the bearer token in hex; "" without one
	source   wire.AgentID   // HMAC of the client's address; stands for the sender in [mailbox.Mail]
	networks []wire.AgentID // HMACs of the networks of the address, as in [mailbox.Mail]

	extensions []string // that the request names
}

// Call is an A2A call as the agent gets it from its mailbox.
type Call struct {
	Method      string     `json:"method"` // SendMessage or CancelTask
	Params      wire.Value `json:"params"`
	Token       string     `json:"token,omitempty"` // SHA-256 of the caller's bearer token in hex
	Extensions  []string   `json:"extensions,omitempty"`
	Task        string     `json:"task"`         // the id of the task at the relay
	AnswerToken string     `json:"answer_token"` // for the header of the answer
}

// The texts with which the relay itself explains a state.
const (
	textWaits   = "the agent gets the message when it connects to its relay"
	textRefused = "the agent refused the message"
	textLarge   = "the answer is too large for the relay"
	textFull    = "the relay had no room for the answer beside the other tasks of the agent"
	textExpired = "the agent did not connect in time"
)

// newTask returns a task in the form of A2A. text explains its state; it may be "".
func newTask(id, contextID string, state a2a.TaskState, text string, now time.Time) wire.Value {
	t := message.Task{ID: id, Context: contextID, State: state, At: now}
	if text != "" {
		t.Status = t.AgentMessage(id+"-"+now.UTC().Format("20060102150405.000"), text)
	}
	return t.Value()
}
