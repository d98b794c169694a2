package a2a

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// nsSent has our side of the conversations with agents that we write to.
const nsSent = "a2a/sent"

const (
	pollPause = time.Minute        // the longest time between two questions about a task
	pollFor   = 7 * 24 * time.Hour // how long an answer may take
	callTime  = 30 * time.Second   // of one call about a task
)

// errInFlight means that the answer to the previous message of the conversation has not come yet.
var errInFlight = errors.New("the agent has not answered the previous message yet")

// sentRow is our side of a conversation: the newest message that we sent in it, and the task that it became. While Due
// is set, the agent works on the task, and the bridge asks about it. The next message waits until the task ends or asks.
type sentRow struct {
	bridge.DueRow
	Address   string              `json:"address"`
	Conv      wire.ConversationID `json:"conv"`
	Intent    wire.Intent         `json:"intent"`
	Message   wire.MessageID      `json:"message"` // sent, or about to be sent
	Context   string              `json:"context"` // the agent's id of the conversation
	Task      string              `json:"task,omitempty"`
	State     a2a.TaskState       `json:"state,omitempty"` // "" while the outcome of the call is unknown; Task is then the task that asked for the message, if any
	Started   time.Time           `json:"started"`         // of the newest attempt to send the message
	Tries     int                 `json:"tries,omitempty"`
	AskedHash []byte              `json:"asked,omitempty"` // hash of the status with the newest question of the agent

	rev store.Rev
}

// outbound writes to other agents. It holds the state of links, the cards, and our side of the conversations.
type outbound struct {
	cfg     Config
	log     *slog.Logger
	records store.Records
	links   bridge.LinkSet[*bridge.CalledLink]
}

func sentKey(address string, conv wire.ConversationID) string {
	return wire.HashOf(address, string(conv))
}

// change returns the change that stores the row.
func (r *sentRow) change(now time.Time) store.Change {
	return store.Change{IfRev: r.rev, Record: r.Schedule(store.Record{NS: nsSent, Key: sentKey(r.Address, r.Conv), Body: wire.MustMarshal(r), Expires: now.Add(keepOpen)}, now)}
}

// load returns the row of a conversation, or a new row if nothing was sent in it yet.
func (o *outbound) load(ctx context.Context, address string, conv wire.ConversationID) (*sentRow, error) {
	r := &sentRow{Address: address, Conv: conv, Context: string(conv)}
	rev, _, err := store.ReadRecord(ctx, o.records, nsSent, sentKey(address, conv), r, time.Now())
	r.rev = rev
	return r, err
}

func (o *outbound) save(ctx context.Context, r *sentRow) error {
	now := time.Now()
	return o.records.Apply(ctx, []store.Change{r.change(now)}, now)
}

// send sends a message to another agent, and takes its answer if it came at once.
func (o *outbound) send(ctx context.Context, address bridge.Address, row *sentRow, d bridge.Delivery) (bridge.Delivered, error) {
	now := time.Now()
	if row.Message == d.Message.ID && row.State != "" {
		return bridge.Delivered{Queued: true}, nil // an earlier attempt arrived
	}
	if !row.Due.IsZero() && !message.IsInterrupted(row.State) {
		const unsent = true // the outbox waits as long as the bridge asks about the task
		return bridge.Delivered{}, &client.SendError{Retry: true, Unsent: unsent, After: max(2*time.Second, row.Due.Sub(now)), Cause: errInFlight}
	}
	peer, err := o.resolve(ctx, address, cardMaxAge)
	if err != nil {
		o.recordLink(address.Link, now, err)
		return bridge.Delivered{}, err
	}
	isRepeated := row.Message == d.Message.ID // an earlier attempt may have arrived
	if !isRepeated && !message.IsInterrupted(row.State) {
		row.Task = "" // the message is a new task
	}
	row.Message, row.Intent, row.Started = d.Message.ID, d.Message.Intent, now.UTC()
	row.State, row.Tries, row.Due = "", 0, time.Time{}
	row.Party = address.String()
	if err = o.save(ctx, row); err == nil {
		row, err = o.load(ctx, row.Address, row.Conv) // for its new revision
	}
	if err != nil {
		return bridge.Delivered{}, client.RetryLater(err)
	}
	var result wire.Value
	found := false
	if isRepeated {
		result, found = o.find(ctx, peer, row)
	}
	if !found {
		params := wire.Obj(
			wire.Field("message", message.NewMessage(string(d.Message.ID), row.Context, row.Task, d.Message.Intent, d.Message.Payload)),
			wire.Field("configuration", wire.Obj(wire.Field("returnImmediately", wire.Bool(true)))),
		)
		result, err = peer.agent.Call(ctx, o.cfg.HTTP, message.SendMessage, params)
		o.recordLink(address.Link, now, err)
		if err != nil {
			return bridge.Delivered{}, asSendError(err)
		}
	}
	if err := asSendError(o.storeAnswer(ctx, row, result)); err != nil {
		if _, ok := errors.AsType[*client.SendError](err); !ok { // the agent has the message, so the next attempt looks for its task
			err = &client.SendError{Retry: true, Processed: true, Cause: err}
		}
		return bridge.Delivered{}, err
	}
	return bridge.Delivered{Queued: true}, nil
}

// find looks for the task of a message whose call had an unknown outcome, so that the message is not sent twice. Not
// every agent lists its tasks; if an agent does not, the message is sent again with the same id.
func (o *outbound) find(ctx context.Context, peer knownAgent, row *sentRow) (wire.Value, bool) {
	list, err := peer.agent.Call(ctx, o.cfg.HTTP, message.ListTasks, wire.Obj(wire.TextField("contextId", row.Context), wire.Field("historyLength", wire.Int(1))))
	if err != nil {
		return wire.Value{}, false
	}
	tasks, _ := list.Get("tasks")
	for task := range tasks.Elems() {
		history, _ := task.Get("history")
		for m := range history.Elems() {
			if m.GetStr("messageId") == string(row.Message) {
				return task, true
			}
		}
	}
	return wire.Value{}, false
}

// errNotFinished means that an agent still works on a task that began more than pollFor ago.
var errNotFinished = errors.New("the agent has not finished the task")

// storeAnswer stores the answer of an agent. A result or a question enters the conversation. If the task may go on
// without a message of ours, the bridge asks about the task again later, or storeAnswer returns errNotFinished after
// pollFor.
func (o *outbound) storeAnswer(ctx context.Context, row *sentRow, result wire.Value) error {
	r, e := message.ReadResult(result)
	if e != nil {
		return &client.SendError{Processed: true, Status: http.StatusOK, Cause: e}
	}
	now := time.Now()
	row.Task, row.State, row.Due = r.TaskID, r.State, time.Time{}
	if r.ContextID != "" {
		row.Context = r.ContextID
	}
	// An agent may return a task before it has read our answer, with its earlier question.
	isStale := message.IsInterrupted(r.State) && bytes.Equal(row.AskedHash, r.StatusHash[:])
	isNews := !r.IsWaiting() && !isStale
	if isNews {
		if err := o.acceptAnswer(ctx, row, r); err != nil {
			return err
		}
		if message.IsInterrupted(r.State) {
			row.AskedHash = r.StatusHash[:]
		}
	}
	if !isNews || r.State == a2a.TaskStateAuthRequired {
		if now.Sub(row.Started) >= pollFor {
			return errNotFinished
		}
		// the pause grows with the attempts, up to a quarter of the task's age
		row.Due = now.Add(min(bridge.PauseBefore(row.Tries, pollPause), max(250*time.Millisecond, now.Sub(row.Started)/4)))
		row.Tries++
	}
	return o.save(ctx, row)
}

// acceptAnswer hands an answer to the node, as a message of the agent in the conversation of row.
func (o *outbound) acceptAnswer(ctx context.Context, row *sentRow, r message.Remote) error {
	address, err := bridge.ParseAddress(row.Address)
	if err != nil {
		return err
	}
	now, name := time.Now(), address.Peer
	if name == linkPeer { // the agent behind a link has the name of the link
		name = address.Link
	}
	intent, payload := r.Payload(row.Intent)
	meta, _ := payload.Get("metadata")
	payload = payload.With("metadata", meta.With("in_reply_to", wire.Text(string(row.Message))))
	if body, ok := unstorableText(payload); ok {
		payload = wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", body))),
			wire.Field("metadata", wire.Obj(wire.TextField("in_reply_to", string(row.Message)))))
	}
	state := string(r.State)
	if r.State == a2a.TaskStateAuthRequired { // the task goes on without a message of ours, and may ask again with another text
		digest := signing.Digest(payload)
		state += hex.EncodeToString(digest[:])
	}
	const verified = false // an answer has no signature
	_, err = o.cfg.Mesh.Accept(ctx, bridge.Inbound{
		Principal: row.Address, Peer: address.Pseudonym(), Address: row.Address, Name: name, Verified: bridge.VerifiedNone,
		MessageID: wire.MessageID("msg_" + wire.HashOf(row.Address, "answer", string(row.Message), row.Task, state)), ConvID: row.Conv,
		Intent: intent, Payload: address.Mark(payload, verified), Time: now, Received: now, Raw: payload.JSON(), Digest: signing.Digest(payload),
		Unattended: true,
	})
	if refusal, ok := errors.AsType[*wire.Error](err); ok && !refusal.Retry {
		o.log.InfoContext(ctx, "a2a: an answer was not accepted", "peer", row.Address, "err", err)
		return nil
	}
	return err
}

// unstorableText returns the text that takes the place of a payload that no message can hold. ok is false for any other
// payload.
func unstorableText(payload wire.Value) (text string, ok bool) {
	body := payload.JSON()
	_, err := wire.ParseObject(body)                                                // a large integer, for example, would become another number
	if len(body) > wire.MaxMessage || err != nil && len(body) > wire.MaxMessage/2 { // quoted, it may be twice as long
		return "(the answer is too large to be stored)", true
	}
	return string(body), err != nil
}

// poll asks about a task that the agent works on.
func (o *outbound) poll(ctx context.Context, rec store.Record) error {
	var row sentRow
	if err := json.Unmarshal(rec.Body, &row); err != nil {
		return err
	}
	row.rev = rec.Rev
	address, err := bridge.ParseAddress(row.Address)
	if err != nil {
		return err
	}
	peer, err := o.resolve(ctx, address, cardMaxAge)
	var result wire.Value
	if err == nil {
		callCtx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		result, err = peer.agent.Call(callCtx, o.cfg.HTTP, message.GetTask, wire.Obj(wire.TextField("id", row.Task), wire.Field("historyLength", wire.Int(0))))
	}
	if err == nil {
		err = o.storeAnswer(ctx, &row, result)
	}
	if err == nil || errors.Is(err, store.ErrConflict) {
		return err
	}
	// Only a refusal of the agent is final. The agent, or the owner, may remove any other cause.
	sendErr, isSendErr := errors.AsType[*client.SendError](asSendError(err))
	refused := isSendErr && !sendErr.Retry
	if !refused && time.Since(row.Started) < pollFor {
		o.log.InfoContext(ctx, "a2a: asking for an answer failed", "peer", row.Address, "tries", row.Tries, "err", err)
		row.Due = time.Now().Add(bridge.PauseBefore(row.Tries, pollPause))
		row.Tries++
		return o.save(ctx, &row)
	}
	reason := "the agent no longer answers for this task: "
	if !refused {
		reason = "there is no answer after 7 days: "
	}
	o.log.InfoContext(ctx, "a2a: the answer to a message will not come", "peer", row.Address, "err", err)
	row.Due, row.State = time.Time{}, a2a.TaskStateFailed
	lost := wire.Obj(wire.TextField("id", row.Task), wire.Field("status", wire.Obj(
		wire.TextField("state", string(a2a.TaskStateFailed)),
		wire.Field("message", wire.Obj(wire.Field("parts", wire.Arr(wire.Obj(wire.TextField("text", reason+wire.OneLine(err.Error(), 300))))))),
	)))
	r, e := message.ReadResult(lost)
	if e != nil {
		return e
	}
	if err := o.acceptAnswer(ctx, &row, r); err != nil {
		return err
	}
	return o.save(ctx, &row)
}

// cancel cancels the task of a conversation at the agent, because we closed the conversation.
func (o *outbound) cancel(ctx context.Context, address bridge.Address, row *sentRow) error {
	if row.Task == "" || row.State.Terminal() {
		return nil
	}
	peer, err := o.resolve(ctx, address, cardMaxAge)
	if err != nil {
		return err
	}
	_, err = peer.agent.Call(ctx, o.cfg.HTTP, message.CancelTask, wire.Obj(wire.TextField("id", row.Task)))
	if refusal, ok := errors.AsType[*message.Error](err); ok && refusal.Status < http.StatusInternalServerError && !client.IsRetryStatus(refusal.Status) &&
		refusal.Status != http.StatusUnauthorized && refusal.Status != http.StatusForbidden {
		err = nil // the task has ended, or the agent does not cancel tasks
	}
	if err != nil {
		return asSendError(err)
	}
	row.State, row.Due = a2a.TaskStateCanceled, time.Time{}
	if err := o.save(ctx, row); !errors.Is(err, store.ErrConflict) {
		return err
	}
	return nil // its answer came meanwhile
}

// asSendError turns a refusal by an agent into an error that tells the outbox whether to try again.
func asSendError(err error) error {
	refusal, ok := errors.AsType[*message.Error](err)
	if !ok {
		return err
	}
	status := refusal.Status
	if status == http.StatusOK && refusal.Code == message.ErrBusy.Code { // the rate limit of OpenClaw
		status = http.StatusTooManyRequests
	}
	code, again := wire.InvalidMessage, client.IsRetryStatus(status)
	// after a failure in its work, the agent may have the message; an agent that is too busy does not have it
	processed := again && status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		code = wire.Unauthorized
	case http.StatusTooManyRequests:
		code = wire.RateLimited
	}
	if status >= http.StatusInternalServerError {
		code = wire.AgentUnavailable
	}
	return &client.SendError{Retry: again, Processed: processed, Status: status, Refusal: &wire.Error{Code: code, Status: status, Message: refusal.Message, Retry: again}}
}

// recordLink records the state of a link, if there is one with this name, after a call that began then and ended with
// err. An agent that refuses one message has answered, so the link is up. A refused token takes the link down.
func (o *outbound) recordLink(link string, began time.Time, err error) {
	state, text := bridge.LinkUp, ""
	refusal, isRefusal := errors.AsType[*message.Error](err)
	sendErr, isSendErr := errors.AsType[*client.SendError](asSendError(err))
	switch {
	case isSendErr && (sendErr.Status == http.StatusUnauthorized || sendErr.Status == http.StatusForbidden):
		state, text = bridge.LinkDown, err.Error()
	case err != nil && (!isRefusal || refusal.Status == http.StatusNotFound || refusal.Status >= http.StatusInternalServerError):
		state, text = bridge.LinkConnecting, err.Error()
	}
	if l, ok := o.links.Find(link); ok {
		l.Record(began, state, text)
	}
}
