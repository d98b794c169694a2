// Package contact lets the owner's agent write to others as a client of A2A: each contact has a URL of its own,
// /a2a/CONTACT, at the agent's door (the API for the owner's agent). This is for agents that have one URL for each peer
// and no field that names a recipient, such as OpenClaw.
//
// A message goes out like every other message of the owner's agent, so the owner's rules and approvals apply. The task
// is WORKING until the conversation has an answer or ends, the owner refuses the message, or its delivery fails. The
// package keeps a small record for each task and each context, and reads everything else through an [owner.Client].
package contact

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"golang.org/x/time/rate"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsTasks    = "a2a/contact-tasks"
	nsContexts = "a2a/contact-contexts" // the open conversation of a context, by contact and context

	maxRecords     = 5000
	keepTask       = 7 * 24 * time.Hour
	keepContext    = 45 * 24 * time.Hour // longer than a conversation lives
	maxWaiters     = 64
	sendsPerMinute = 30
	maxPages       = 20 // of a transcript
	maxDepth       = 64 // of a message that a bridge received
	maxValues      = 50_000
)

// Config configures a [Door]. Client and Records are required.
type Config struct {
	Client  *owner.Client // has the rights of the owner's agent
	Records store.Records
}

// Door has the tasks behind the URLs of contacts. It is safe for concurrent use.
type Door struct {
	cfg      Config
	sends    *rate.Limiter
	contexts *waiting.KeyedLock // by contact and context, while a message opens the conversation
}

// New returns a door.
func New(cfg Config) *Door {
	return &Door{cfg: cfg, sends: rate.NewLimiter(rate.Every(time.Minute/sendsPerMinute), sendsPerMinute), contexts: waiting.NewKeyedLock()}
}

// task is a message of the owner's agent to a contact, as the A2A client knows it.
type task struct {
	ID      string              `json:"id"`
	Contact string              `json:"contact"`
	Context string              `json:"context"`
	Digest  string              `json:"digest"` // of the client's message
	Conv    wire.ConversationID `json:"conv,omitempty"`
	Message wire.MessageID      `json:"message,omitempty"` // "" if it had to wait for the owner
	Ask     string              `json:"ask,omitempty"`     // the question to the owner
	Failed  bool                `json:"failed,omitempty"`
	Created time.Time           `json:"created"`
}

// Open returns the front end's view of the tasks of a contact. The caller authenticates the request.
func (d *Door) Open(contact string) door.Caller {
	return door.Caller{Tasks: tasks{d, contact}, Shares: []door.Share{{Max: maxWaiters}}}
}

// tasks implements [door.Tasks] for one contact.
type tasks struct {
	d       *Door
	contact string
}

// shown is a task as the client sees it.
func (c tasks) shown(ctx context.Context, t *task, err error) (door.Task, error) {
	if err != nil {
		return door.Task{}, err
	}
	v, err := c.d.view(ctx, t)
	return door.Task{ID: v.ID, State: v.State, At: v.At, Row: v.Value()}, err
}

// Send implements [door.Tasks].
func (c tasks) Send(ctx context.Context, call message.Call, m message.Message) (door.Task, error) {
	t, err := c.d.send(ctx, m, c.contact, call.Blocks())
	return c.shown(ctx, t, err)
}

// Find implements [door.Tasks].
func (c tasks) Find(ctx context.Context, id string) (door.Task, error) {
	t, err := c.d.find(ctx, c.contact, id)
	return c.shown(ctx, t, err)
}

var errNoOther = message.ErrUnsupported.At("the URL of a contact has only messages, streams and GetTask")

// List implements [door.Tasks].
func (c tasks) List(context.Context, string) ([]door.Task, error) { return nil, errNoOther }

// Cancel implements [door.Tasks].
func (c tasks) Cancel(context.Context, door.Task) (door.Task, error) {
	return door.Task{}, errNoOther
}

// Do implements [door.Tasks].
func (c tasks) Do(_ context.Context, call message.Call) (wire.Value, error) {
	if call.Method == message.GetExtendedCard {
		return wire.Value{}, errNoOther
	}
	return wire.Value{}, message.ErrPushUnsupported
}

// Show implements [door.Tasks].
func (c tasks) Show(_ context.Context, _ int, list ...door.Task) (views []wire.Value, err error) {
	for _, t := range list {
		views = append(views, t.Row.(wire.Value))
	}
	return views, nil
}

// Since implements [door.Tasks].
func (c tasks) Since(_ context.Context, seen, now door.Task) ([]wire.Value, error) {
	before, after := seen.Row.(wire.Value), now.Row.(wire.Value)
	if bytes.Equal(before.JSON(), after.JSON()) {
		return nil, nil
	}
	return door.Events(after), nil
}

// ErrorOf returns the A2A error for an error of the owner API. It keeps the text of a refusal, because the caller is
// the owner's own agent.
func ErrorOf(err error) *message.Error {
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Status < http.StatusInternalServerError && e.Status != http.StatusTooManyRequests {
		return message.ErrParams.At(wire.OneLine(e.Message, 300)) // such as an unknown contact
	}
	return message.FromMesh(err)
}

// send sends a message to a contact. If the client repeats a message, send returns its task (A2A-D4).
// If blocks is true, it waits for the answer.
func (d *Door) send(ctx context.Context, m message.Message, contact string, blocks bool) (*task, error) {
	id, digest := wire.HashOf("task", contact, m.ID), wire.HashOf(string(m.Tree.JSON()))
	earlier, err := d.find(ctx, contact, id)
	switch {
	case err == nil && earlier.Digest != digest:
		return nil, message.ErrParams.At("the message id was used before with other content")
	case err == nil:
		return earlier, nil
	case !errors.Is(err, message.ErrTaskNotFound):
		return nil, err
	}
	t := &task{ID: id, Contact: contact, Context: m.ContextID, Digest: digest, Created: time.Now().UTC()}
	if m.TaskID != "" {
		previous, err := d.find(ctx, contact, m.TaskID)
		if err != nil {
			return nil, err
		}
		t.Context = previous.Context
	}
	if t.Context == "" {
		t.Context = "ctx_" + id
	}
	if !d.sends.Allow() {
		return nil, message.ErrBusy
	}
	key := wire.HashOf(contact, t.Context)
	rec, err := d.cfg.Records.Get(ctx, nsContexts, key, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		const noTimeout = 0
		unlock, lockErr := d.contexts.Lock(ctx, key, noTimeout) // two messages must not open two conversations
		if lockErr != nil {
			return nil, lockErr
		}
		defer unlock()
		rec, err = d.cfg.Records.Get(ctx, nsContexts, key, time.Now())
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	out := owner.NewMessage{To: contact, Conversation: wire.ConversationID(rec.Body), IdempotencyKey: id}
	out.Intent, out.Payload = m.Payload()
	if blocks {
		out.WaitSeconds = int(door.BlockFor / time.Second)
	}
	sent, err := owner.Fetch(ctx, d.cfg.Client, owner.SendMessage.With(out))
	if refused, ok := errors.AsType[*wire.Error](err); ok && refused.Status == http.StatusConflict && out.Conversation != "" {
		out.Conversation = "" // the conversation has ended
		sent, err = owner.Fetch(ctx, d.cfg.Client, owner.SendMessage.With(out))
	}
	if err != nil {
		return nil, err
	}
	t.Conv, t.Message, t.Ask, t.Failed = sent.Conversation, sent.MessageID, sent.Ask, sent.State == owner.SendFailed
	return t, d.save(ctx, t)
}

// save stores a task, and the conversation of its context.
func (d *Door) save(ctx context.Context, t *task) error {
	body, err := json.Marshal(t)
	if err != nil {
		return err
	}
	changes := []store.Change{{IfRev: store.Any, Max: maxRecords, Record: store.Record{NS: nsTasks, Key: t.ID, Body: body, Expires: t.Created.Add(keepTask)}}}
	if t.Conv != "" {
		changes = append(changes, store.Change{IfRev: store.Any, Max: maxRecords, Record: store.Record{
			NS: nsContexts, Key: wire.HashOf(t.Contact, t.Context), Body: []byte(t.Conv), Expires: t.Created.Add(keepContext),
		}})
	}
	err = d.cfg.Records.Apply(ctx, changes, time.Now())
	if errors.Is(err, store.ErrQuota) { // the message has been sent, so the client must get its task
		if err = errors.Join(d.makeRoom(ctx, nsTasks), d.makeRoom(ctx, nsContexts)); err == nil {
			err = d.cfg.Records.Apply(ctx, changes, time.Now())
		}
	}
	return err
}

// makeRoom removes the oldest tenth of the records of a namespace, if the namespace is full.
func (d *Door) makeRoom(ctx context.Context, ns string) error {
	var old []store.Change
	for rec, err := range store.AllRecords(ctx, d.cfg.Records, ns, "", time.Now()) {
		if err != nil {
			return err
		}
		old = append(old, store.Change{IfRev: store.Any, Delete: true, Record: store.Record{NS: ns, Key: rec.Key, Expires: rec.Expires}})
	}
	if len(old) < maxRecords {
		return nil
	}
	slices.SortFunc(old, func(x, y store.Change) int { return x.Record.Expires.Compare(y.Record.Expires) })
	return d.cfg.Records.Apply(ctx, old[:maxRecords/10], time.Now())
}

// find returns a task of a contact, or [message.ErrTaskNotFound].
func (d *Door) find(ctx context.Context, contact, id string) (*task, error) {
	t := &task{}
	_, ok, err := store.ReadRecord(ctx, d.cfg.Records, nsTasks, id, t, time.Now())
	if err != nil {
		return nil, err
	}
	if !ok || t.Contact != contact {
		return nil, message.ErrTaskNotFound
	}
	return t, nil
}

const (
	textWaits   = "waits for your owner"
	textRefused = "your owner declined"
	textFailed  = "the message could not be delivered"
	textSent    = "the message is on its way, and the answer comes later"
	textEnded   = "the conversation has ended"
)

// view returns the task as the client sees it, with the answer if there is one.
func (d *Door) view(ctx context.Context, t *task) (message.Task, error) {
	shown := message.Task{ID: t.ID, Context: t.Context, State: sdk.TaskStateWorking, At: t.Created}
	say := func(state sdk.TaskState, text string) (message.Task, error) {
		shown.State, shown.Status = state, shown.AgentMessage(wire.HashOf(t.ID, text), text)
		return shown, nil
	}
	sentFrom := t.Created // our message was sent then or later
	switch {
	case t.Failed:
		return say(sdk.TaskStateFailed, textFailed)
	case t.Ask != "":
		q, err := owner.Fetch(ctx, d.cfg.Client, owner.ShowQuestion.Call(t.Ask))
		switch {
		case err != nil:
			return shown, err
		case q.State == acl.AskPending:
			return say(sdk.TaskStateWorking, textWaits)
		case q.State != acl.AskApproved:
			return say(sdk.TaskStateRejected, textRefused)
		}
		sentFrom = q.Decided.Truncate(time.Millisecond) // because the transcript truncates its times
	}
	reply, at, state, err := d.answerTo(ctx, t, sentFrom)
	switch {
	case err != nil:
		return shown, err
	case reply.State != "":
		shown.State, shown.At, shown.Artifacts = reply.State, at, reply.Artifacts
		if reply.Text != "" {
			shown.Status = shown.AgentMessage(wire.HashOf(t.ID, reply.Text), reply.Text)
		}
		return shown, nil
	case state != "" && state != conversations.Open:
		return say(sdk.TaskStateFailed, textEnded)
	}
	return say(sdk.TaskStateWorking, textSent)
}

// answerTo returns what the peer answered to the message of a task: the peer's newest message after ours. Once there
// is an answer, the next message of ours ends the search. If t.Message is empty, our message is the first one that we
// sent at sentFrom or later. Without an answer, the reply has no state. state is the state of the conversation.
func (d *Door) answerTo(ctx context.Context, t *task, sentFrom time.Time) (reply message.Reply, at time.Time, state conversations.State, err error) {
	reached := false                        // whether the message of the task has been reached
	others := make(map[wire.MessageID]bool) // our other messages
	query := url.Values{}
	if wire.AgentID(t.Contact).Valid() { // another peer may use the same conversation id
		query.Set("peer", t.Contact)
	}
	call := owner.ShowConversation.Call(string(t.Conv)).WithQuery(query)
	for range maxPages {
		page, err := owner.Fetch(ctx, d.cfg.Client, call)
		if refused, ok := errors.AsType[*wire.Error](err); ok && refused.Status == http.StatusNotFound {
			return reply, at, "", nil // nothing was sent yet, or the owner has deleted the conversation
		}
		if err != nil {
			return reply, at, "", err
		}
		state = page.State
		for _, e := range page.Transcript {
			if e.Direction == "out" {
				if reached && reply.State != "" {
					return reply, at, state, nil
				}
				id := wire.MessageID(e.MessageID)
				isOurs := id == t.Message || t.Message == "" && !reached && !e.At.Before(sentFrom)
				reached, others[id] = reached || isOurs, !isOurs
				continue
			}
			if answer, ok := readEntry(e, reply, others); ok && reached {
				reply, at = answer, e.At
			}
		}
		if page.Next == 0 {
			return reply, at, state, nil
		}
		query.Set("after", strconv.FormatUint(page.Next, 10))
		call = call.WithQuery(query)
	}
	return reply, at, state, nil
}

// readEntry returns what a message of a peer says about a task. earlier is what the peer said before, and others has
// our messages that are not of the task. ok is false for a receipt, for pending_approval, for an answer to one of
// others, for a close after an answer that ended the task, and for a message that cannot be parsed or that the owner
// has not released.
func readEntry(e owner.Entry, earlier message.Reply, others map[wire.MessageID]bool) (reply message.Reply, ok bool) {
	tree, err := wire.ParseForeign(e.Message, maxDepth, maxValues)
	if err != nil {
		return reply, false
	}
	payload, _ := tree.Get("payload")
	if e.Opened != nil {
		payload = *e.Opened
	}
	if _, withheld := tree.Get("withheld"); withheld {
		return reply, false
	}
	if payload.Kind() != wire.Object { // a foreign message
		payload = wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", "an answer is in your inbox"))))
	}
	reply = message.ReadReply(wire.Intent(tree.GetStr("intent")), payload, e.MessageID, false) // for a client without our extension
	action := payload.GetStr("action")
	isLate := action == wire.ActionClose && earlier.State.Terminal()
	isForOther := others[conversations.AnswersIn(payload)]
	return reply, !reply.Receipt && action != wire.ActionPending && !isLate && !isForOther
}
