package node

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// judgeRoute handles the messages that only the guard holds up on their way into the inbox.
var judgeRoute = Route{Name: "guard", Repeatable: true, Replies: true, Handler: silent{}, Duty: "inbox"}

type silent struct{}

// Handle has nothing to say. The guard has judged the message before.
func (silent) Handle(context.Context, hook.Call) (hook.Answer, error) { return hook.Answer{}, nil }

// judge asks the guard about the message before the owner's agent gets it (AM-95), and stores the verdict with the
// item. why says what the owner decides, if the guard did not let the message through. A stored verdict is not asked for
// again, unless the guard was configured anew.
func (r *run) judge(ctx context.Context) (why string, err error) {
	n := r.n
	item, err := n.Item(ctx, r.itemID)
	if err != nil || !item.Unjudged {
		return "", err
	}
	v := item.Verdict
	if g := n.cfg.Guard; !g.Judges(guard.In) {
		v = &owner.Verdict{Decision: string(guard.Allow)} // the owner has removed it
	} else {
		text := guard.Text{
			Direction: guard.In, Peer: item.subject(), Conversation: string(item.Conversation), Intent: item.Intent, Payload: r.payload,
		}
		if text.Standing, err = n.rules.Standing(ctx, item.subject(), time.Now()); err != nil {
			return "", err
		}
		if key := g.Key(text); v == nil || v.Key != key {
			given, err := g.Judge(ctx, r.turn.Source, text)
			n.runs.Stats.Add("guard", err, time.Now())
			if err != nil {
				return "", err
			}
			v = &owner.Verdict{Key: key, Decision: string(given.Decision), Reason: given.Reason}
		}
	}
	err = n.book.Insist(context.WithoutCancel(ctx), r.key, func(u *conversations.Unit) error {
		item, err := n.Item(ctx, r.itemID)
		if err != nil || u.IsNew() || item.State != owner.ItemRunning { // answered or deleted meanwhile
			return err
		}
		item.Verdict = v
		if v.Decision == string(guard.Allow) {
			if err := item.letThrough(u); err != nil {
				return err
			}
		}
		u.Add(item.change())
		return nil
	})
	return explainVerdict(guard.Verdict{Decision: guard.Decision(v.Decision), Reason: v.Reason}), err
}

// letThrough shows the message to the owner's agent.
func (i *Item) letThrough(u *conversations.Unit) error {
	i.Unjudged = false
	return u.Record(conversations.Event{Kind: conversations.Judged, At: u.Now, ID: i.MessageID})
}

// ruleGuard is the rule of a message of ours that the guard did not let through.
const ruleGuard = "guard"

// judgeOut asks the guard about a message of ours that may leave, and returns why the owner decides first, or "".
func (n *Node) judgeOut(ctx context.Context, out Outgoing) (why string) {
	g := n.cfg.Guard
	isJudged := out.Via == "hook" || out.Via == "agent" || out.Via == "owner" && g != nil && g.Owner
	if g == nil || !isJudged || !g.Judges(guard.Out) || !rules.HasText(out.Payload) {
		return ""
	}
	standing, err := n.rules.Standing(ctx, principal(out), time.Now(), out.Address)
	var v guard.Verdict
	if err == nil {
		v, err = g.Judge(ctx, hook.Source{Key: principal(out)}, guard.Text{
			Direction: guard.Out, Peer: principal(out), Standing: standing, Conversation: string(out.Conv), Intent: out.Intent, Payload: out.Payload,
		})
		n.runs.Stats.Add("guard", err, time.Now())
	}
	if err != nil {
		n.log.Warn("guard failed", "conversation", out.Conv, "err", err)
		return noteNoVerdict
	}
	return explainVerdict(v)
}

// permitJudged is permit, and then asks the guard about a message that may leave.
func (n *Node) permitJudged(ctx context.Context, out Outgoing) (rules.Permission, error) {
	p, err := n.permit(ctx, out, time.Now())
	if err == nil && !p.NeedsOwner {
		if why := n.judgeOut(ctx, out); why != "" {
			p = rules.Permission{NeedsOwner: true, Rule: ruleGuard, Reason: why}
		}
	}
	return p, err
}

// explainVerdict tells the owner why a text waits, or returns "" if it does not.
func explainVerdict(v guard.Verdict) string {
	switch {
	case v.Decision == guard.Allow:
		return ""
	case v.Reason == "":
		return "the guard says " + string(v.Decision)
	}
	return "the guard says " + string(v.Decision) + ": " + v.Reason
}

// noteNoVerdict is for the owner; the log has the details.
const noteNoVerdict = "the guard gave no verdict; see the log"

// hideReply removes a reply of the peer that the owner's agent may not see, or not yet.
func (o OwnerAPI) hideReply(ctx context.Context, out Outgoing, sent owner.Sent) owner.Sent {
	id := wire.MessageID(sent.ReplyTree.GetStr("message_id"))
	if out.Via != "agent" || id == "" {
		return sent
	}
	thread, err := o.n.book.Load(ctx, store.ConvKey{Peer: string(out.To), ID: string(sent.Conversation)}, time.Now())
	if err != nil || !thread.Conversation().IsReleased(id) {
		sent.Reply, sent.ReplyTree = nil, wire.Value{}
		sent.Hint = "the answer comes into the inbox when it was judged"
	}
	return sent
}
