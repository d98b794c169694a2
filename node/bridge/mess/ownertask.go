package mess

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// This file shows the owner the threads in which it is the owner's turn to act ([thread.Thread.Turn]). Offers,
// questions of executors and suggestions become tasks in the inbox (MESS section 12). Actions that the owner must
// confirm, and threads that the owner must approve, become questions in the approval queue. The bridge derives both
// from the thread and its messages, each time the exchange sends a notice about the thread to the owner.

// aboutThread returns the member About of tasks and questions about a thread.
func aboutThread(ref string) string { return Kind + "/" + ref }

// updateOwner makes the owner's inbox and questions match what the owner can do about a thread, and commits changes.
func (b *Bridge) updateOwner(ctx context.Context, t *thread.Thread, changes []store.Change) error {
	changes, err := b.updateQuestions(ctx, t, changes)
	if err != nil {
		return err
	}
	task, err := b.newTask(ctx, t)
	if err != nil {
		return err
	}
	return b.cfg.Mesh.PutTask(ctx, task, changes)
}

// updateQuestions adds the changes that withdraw outdated questions about a thread and ask the current one.
func (b *Bridge) updateQuestions(ctx context.Context, t *thread.Thread, changes []store.Change) ([]store.Change, error) {
	kind, title := questionOf(t)
	hasQuestion := false
	// the function reports whether to withdraw a question
	stale, err := b.cfg.Mesh.Asks().WithdrawAbout(ctx, aboutThread(t.Ref), func(a acl.Ask) bool {
		isCurrent := false
		switch a.Kind {
		case askConfirm:
			var body askBody
			isCurrent = kind == askConfirm && json.Unmarshal(a.Body, &body) == nil && body.Serial == t.Serial
		case askHeld:
			isCurrent = t.Turn() == thread.TurnRelease
		case askRoute:
			return !t.IsClaimable()
		default:
			return false
		}
		hasQuestion = hasQuestion || isCurrent
		return !isCurrent
	}, time.Now())
	if err != nil {
		return nil, err
	}
	changes = append(changes, stale...)
	if kind == "" || hasQuestion {
		return changes, nil
	}
	question, err := b.newQuestion(ctx, kind, t, askBody{}, title)
	return append(changes, question...), err
}

// questionOf returns the kind and title of the question for the owner's turn, or "" if the turn needs none. It does not
// ask again about a thread that the owner holds back.
func questionOf(t *thread.Thread) (kind, title string) {
	switch turn := t.Turn(); {
	case strings.HasPrefix(turn, thread.TurnConfirm+"/"):
		return askConfirm, "an executor wants to act and asks you to confirm"
	case turn == thread.TurnRelease && t.History[len(t.History)-1].By != thread.OwnerID:
		return askHeld, "a request needs your approval before anybody acts on it"
	}
	return "", ""
}

// maxTask bounds, in bytes, what a task or a question quotes from others. The thread has the full text.
const maxTask = 64 << 10

// newTask returns the inbox task for the owner's turn. The task has an empty Turn if this turn needs no task.
func (b *Bridge) newTask(ctx context.Context, t *thread.Thread) (bridge.Task, error) {
	kind, n, _ := strings.Cut(t.Turn(), "/")
	hasOwnerActed := t.History[len(t.History)-1].By == thread.OwnerID
	task := bridge.Task{About: aboutThread(t.Ref), Done: hasOwnerActed}
	switch kind {
	case thread.TurnWork, thread.TurnAnswer:
	case thread.TurnSuggestion:
		return suggestionTask(t, task), nil
	default:
		// the history does not always contain the owner's decision about a suggestion, so look at the newest message
		if kind == "" && len(t.Suggestions) > 0 && !task.Done {
			last, err := b.newestMessage(ctx, t.Ref, t.Serial, func(m thread.Message) bool { return m.From != thread.ExchangeID })
			task.Done = last.From == thread.OwnerID
			return task, err
		}
		return task, nil
	}
	serial, from := t.Serial, t.Requester // the task shows the newest message of from, up to serial
	askedNothing := n == "0"              // in a turn of kind TurnWork, n counts the questions of the holder
	if askedNothing {
		serial = 1 // the request
	}
	if kind == thread.TurnAnswer {
		from = t.Holder
	}
	m, err := b.newestMessage(ctx, t.Ref, serial, func(m thread.Message) bool { return m.From == from })
	if err != nil {
		return task, err
	}
	task.Turn, task.Intent = t.Turn(), Intent
	task.Taken = askedNothing && t.Holder == thread.OwnerID
	task.Peer, task.Name, task.Proof = senderOf(t, from)
	task.Payload = wire.Obj(wire.TextField("action", m.Block().Action()), wire.TextField("ref", t.Ref))
	if kind == thread.TurnAnswer {
		task.Payload = task.Payload.With("questions", t.QuestionTree())
	}
	if list := thread.ToResources(t.Ref, m.Mess); len(list.JSON()) <= maxTask {
		task.Payload = task.Payload.With("mess", list)
	} else {
		task.Payload = task.Payload.With("intent", wire.Text(wire.OneLine(t.Intent, 1000))).With("shortened", wire.Bool(true))
	}
	return task, nil
}

// senderOf returns the id and the name of a message's author, and how the author was verified.
func senderOf(t *thread.Thread, from string) (id wire.AgentID, name, proof string) {
	if p, ok := t.Peers[from]; ok || strings.HasPrefix(from, "am_") {
		if p.Address != "" {
			return wire.AgentID(from), p.Address, bridge.VerifiedNone
		}
		return wire.AgentID(from), "", bridge.VerifiedSignature
	}
	return bridge.Address{Kind: Kind, Peer: from}.Pseudonym(), wire.OneLine(from, 128), bridge.VerifiedBearer
}

// Answer implements [bridge.Answerer]: the owner answers a task in the inbox.
func (b *Bridge) Answer(ctx context.Context, a bridge.Answer) (wire.Value, error) {
	ref := strings.TrimPrefix(a.About, Kind+"/")
	owner := exchange.Owner("inbox")
	t, err := b.x.Thread(ctx, owner, ref)
	if err != nil {
		return wire.Value{}, err
	}
	block, err := parseAnswer(t, a)
	if err != nil {
		return wire.Value{}, err
	}
	res, err := b.x.Do(ctx, owner, block, exchange.Options{
		// the answer is final if it changes the turn
		Re: ref, IfTurn: a.Turn, Then: func(t *thread.Thread) []store.Change { return a.TaskChanges(t.Turn() != a.Turn) },
	})
	return ackPayload(res), err
}

// parseAnswer reads the owner's answer to a task. The answer has one of these forms:
//   - a MESS list in the member mess, as agents send it
//   - {"action": "accept"} or "decline" for an offer or a suggestion; "claim" also accepts an offer
//   - {"answers": {field: text}} for questions
//   - a text, which is the result or the answer
func parseAnswer(t *thread.Thread, a bridge.Answer) (thread.Block, error) {
	kind, _, _ := strings.Cut(a.Turn, "/")
	entry := func(entryType string, fields ...wire.Member) (thread.Block, error) {
		return thread.Block{thread.NewEntry(entryType, t.Ref, fields...)}, nil
	}
	list, hasList := a.Payload.Get("mess")
	answers, hasAnswers := a.Payload.Get("answers")
	message, _ := a.Payload.Get("message")
	text := message.GetStr("body")
	switch action := a.Payload.GetStr("action"); {
	case hasList:
		return parseOwnerBlock(t, list, kind)
	case kind == thread.TurnSuggestion && (action == "accept" || action == "decline"):
		fields := []wire.Member{wire.Field("accept", wire.Bool(action == "accept"))}
		if reason := a.Payload.GetStr("reason"); reason != "" {
			fields = append(fields, wire.TextField("reason", reason))
		}
		return entry("reply", fields...)
	case kind == thread.TurnWork && (action == "accept" || action == "claim"):
		fields := []wire.Member{wire.TextField("code", string(thread.Claimed))}
		if eta, ok := a.Payload.Get("eta"); ok {
			fields = append(fields, wire.Field("eta", eta))
		}
		return entry("status", fields...)
	case kind == thread.TurnWork && action == "decline":
		reason := cmp.Or(a.Payload.GetStr("reason"), "the owner declined")
		return entry("status", wire.TextField("code", string(thread.Declined)), wire.TextField("reason", reason))
	case kind == thread.TurnWork && text != "":
		return entry("response", wire.Field("content", wire.Arr(wire.Text(text))))
	case kind == thread.TurnAnswer && hasAnswers:
		return entry("reply", wire.Field("answers", answers))
	case kind == thread.TurnAnswer && text != "":
		return entry("answer", wire.TextField("value", text))
	}
	return nil, thread.Bad("", explainTurn(t, kind))
}

// taskEntries are the entry types that a task accepts, by the kind of its turn. The owner confirms an action in the
// approval queue, not here. A status may set only the states that an executor may set: an answer must not cancel a
// request or let it expire.
var taskEntries = map[string][]string{
	thread.TurnWork: {"v", "status", "response"}, thread.TurnAnswer: {"v", "answer", "reply"}, thread.TurnSuggestion: {"v", "reply"},
}

// parseOwnerBlock reads a MESS list of the owner. All entries must be about this thread.
func parseOwnerBlock(t *thread.Thread, list wire.Value, kind string) (thread.Block, error) {
	b, err := thread.FromTree(list)
	if err != nil {
		return nil, err
	}
	if err := b.CheckBounds(); err != nil {
		return nil, err
	}
	for i, e := range b {
		_, confirms := e.Body.Get("confirm")
		_, accepts := e.Body.Get("accept")
		code, hasCode := thread.ParseCode(e.Body.GetStr("code"))
		re, hasRe := e.Body.Get("re")
		ref, _ := re.Str()
		isDecision := kind == thread.TurnSuggestion && e.Type == "reply"
		isForbiddenCode := hasCode && code != thread.Claimed && !slices.Contains(thread.WorkingCodes, code)
		switch {
		case !slices.Contains(taskEntries[kind], e.Type) || confirms || accepts != isDecision || isForbiddenCode:
			return nil, thread.Bad(thread.EntryPath(i, e), "does not answer this task: "+explainTurn(t, kind))
		case hasRe && ref != t.Ref:
			return nil, thread.Bad(thread.EntryPath(i, e)+".re", "must be "+t.Ref+", or be left out")
		case e.Body.Kind() == wire.Object:
			b[i].Body = e.Body.With("re", wire.Text(t.Ref))
		}
	}
	return b, nil
}

// explainTurn returns a text for the owner about the answers that a task accepts.
func explainTurn(t *thread.Thread, kind string) string {
	if kind == thread.TurnSuggestion {
		return "answer with --action accept or decline"
	}
	if kind == thread.TurnAnswer {
		fields := make([]string, 0, len(t.Questions))
		for _, q := range t.Questions {
			if !q.Answered {
				fields = append(fields, fmt.Sprintf("%q: …", q.ID))
			}
		}
		return fmt.Sprintf("answer with a text, or with {\"answers\": {%s}}", strings.Join(fields, ", "))
	}
	return "answer with a text, which is the result, with --action accept or decline, or with {\"mess\": […]}"
}

// suggestionTask returns task with the newest undecided suggestion.
func suggestionTask(t *thread.Thread, task bridge.Task) bridge.Task {
	s := t.FindSuggestion("")
	task.Turn, task.Intent = t.Turn(), Intent
	task.Peer, task.Name, task.Proof = senderOf(t, s.By)
	task.Payload = wire.Obj(
		wire.TextField("action", "suggestion"), wire.TextField("ref", t.Ref),
		wire.TextField("intent", wire.OneLine(t.Intent, 1000)))
	if list := (thread.Block{s.Entry()}).Tree(); len(list.JSON()) <= maxTask {
		task.Payload = task.Payload.With("mess", list)
	} else {
		task.Payload = task.Payload.With("shortened", wire.Bool(true))
	}
	return task
}
