package web

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// messageView is an entry of a transcript.
type messageView struct {
	N       uint64
	Out     bool
	At      time.Time
	ID      string
	Intent  wire.Intent
	Author  string // of an entry of ours, as in [owner.Entry]
	Sealed  bool
	Content content
}

// part is an element of a chat. It stands for one message that says something, together with the receipts for it, or, as
// a line, for messages that only report what happened.
type part struct {
	Messages []messageView
	Who      string   // who wrote it, if that is us
	Deeds    []string // of a line: what happened
	Mark     string   // what became of a message of ours
	Offer    *offer   // the message is a standing proposal, which is shown instead of its words
	Agreed   *agreed  // the message made this agreement, which is shown after its words
	Words    bool     // the words of the message are shown
}

// First returns the message that the part stands for, or the first of them.
func (p part) First() messageView { return p.Messages[0] }

// IsLine reports whether the part is a line about what happened.
func (p part) IsLine() bool { return len(p.Deeds) > 0 }

// Deed returns the text of a line.
func (p part) Deed() string { return strings.Join(p.Deeds, " · ") }

// authors name who wrote a message of ours, if that was not the owner.
var authors = map[string]string{"agent": "Your agent", "hook": "Your agent", "bridge": "The bridge", "node": "The program"}

// choice is an offered time: as offered, and in the zone of the owner.
type choice struct{ Value, Text string }

// offer is a standing proposal with its form.
type offer struct {
	owner.Proposal
	URL  string // of the conversation
	Open bool   // the conversation
	n    int
}

// Offers returns the standing proposals, the newest first.
func (v conversationView) Offers() (list []offer) {
	for n, p := range v.Proposals {
		list = append(list, offer{p, v.URL, v.Open, n})
	}
	return list
}

// ID returns the id of an element of the offer on the page.
func (o offer) ID(element string) string {
	if o.n == 0 {
		return element
	}
	return element + "-" + strconv.Itoa(o.n)
}

// Offered returns the times of the proposal in the zone of the owner.
func (o offer) Offered() []choice {
	list := make([]choice, len(o.Times))
	for i, t := range o.Times {
		list[i] = choice{t, owner.LocalTime(t)}
	}
	return list
}

// CanAnswer reports whether the offer came from the peer and waits for an answer of ours.
func (o offer) CanAnswer() bool { return o.Open && o.By == conversations.Theirs && o.Accepted == "" }

func (o offer) Length() string { return owner.Length(o.Duration) }

// Choices returns the times that an accept must choose from; the list is empty if an accept need not choose.
func (o offer) Choices() []choice {
	if o.By != conversations.Theirs || len(o.Times) < 2 {
		return nil
	}
	return o.Offered()
}

// agreed is an agreement with what a page shows of it.
type agreed struct {
	owner.Agreement
	URL string // of the conversation
}

// Agreed returns what was agreed, the newest first.
func (v conversationView) Agreed() (list []agreed) {
	for _, a := range v.Agreements {
		list = append(list, agreed{a, v.URL})
	}
	return list
}

// IsEvent reports whether the page offers the agreement as a calendar file.
func (a agreed) IsEvent() bool {
	_, ok := calendar.AgreedEvent(a.Agreement.Agreement, "", "", "", a.At)
	return ok && a.Standing == owner.StandingAgreed
}

// viewMessages returns the views of a part of a transcript, and the number to continue after; 0 at the end.
func viewMessages(t owner.Transcript) (list []messageView, next uint64) {
	entries, next := t.Transcript, t.Next
	if len(entries) > maxMessages {
		entries = entries[:maxMessages]
		next = entries[maxMessages-1].N
	}
	for _, e := range entries {
		m := messageView{N: e.N, Out: e.Direction == "out", At: e.At, ID: e.MessageID, Author: e.Author, Sealed: e.Sealed}
		m.Content.Said, m.Intent = owner.SayMessage(e, t.Intent)
		m.Content.Exact = e.Message
		list = append(list, m)
	}
	return list, next
}

// talk arranges messages as a chat. Each standing proposal and each agreement is where the message is that made it, or at
// the end if that message is on another page.
func (v conversationView) talk(messages []messageView) (parts []part) {
	offers, agreements := v.Offers(), v.Agreed()
	for _, m := range messages {
		p := part{Messages: []messageView{m}, Words: true}
		if m.Out {
			p.Who = authors[m.Author]
		}
		if p.Offer = take(&offers, func(o offer) bool { return string(o.Message) == m.ID }); p.Offer != nil {
			p.Words = false
		}
		if p.Agreed = take(&agreements, func(a agreed) bool { return string(a.Message) == m.ID }); p.Agreed != nil {
			p.Words = m.Content.Text != ""
		}
		last := len(parts) - 1
		switch isReport := m.Content.IsReport(); {
		case p.Offer != nil || p.Agreed != nil || !isReport:
			parts = append(parts, p)
		case m.Content.Action == wire.ActionReceived || m.Content.Action == wire.ActionPending:
			if last < 0 { // what it is about is on the page before
				continue
			}
			parts[last].Messages = append(parts[last].Messages, m)
			if about := &parts[last]; !m.Out && about.First().Out {
				about.Mark = "delivered"
				if m.Content.Action == wire.ActionPending {
					about.Mark = "their owner decides"
				}
			}
		default:
			deed := v.deed(m)
			if last >= 0 && parts[last].IsLine() {
				parts[last].Messages = append(parts[last].Messages, m)
				if !slices.Contains(parts[last].Deeds, deed) {
					parts[last].Deeds = append(parts[last].Deeds, deed)
				}
				continue
			}
			p.Deeds = []string{deed}
			parts = append(parts, p)
		}
	}
	for _, o := range slices.Backward(offers) {
		parts = append(parts, part{Offer: &o})
	}
	for _, a := range slices.Backward(agreements) {
		parts = append(parts, part{Agreed: &a})
	}
	return parts
}

// take removes the first element that is the one from a list, and returns it, or nil.
func take[T any](list *[]T, is func(T) bool) *T {
	i := slices.IndexFunc(*list, is)
	if i < 0 {
		return nil
	}
	found := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return &found
}

// deed says who did what with a message that only reports. Both sides close a conversation, so nobody did it.
func (v conversationView) deed(m messageView) string {
	if m.Content.Action == wire.ActionClose {
		return "closed"
	}
	who := v.Shown().String()
	if m.Out {
		who = cmp.Or(authors[m.Author], "You")
	}
	return who + " " + m.Content.Deed(m.Intent)
}

// markUndelivered marks the newest message of ours with what the outbox knows of it, if nothing shows that it arrived.
func (r reader) markUndelivered(ctx context.Context, parts []part) error {
	at := len(parts) - 1
	for at >= 0 && (parts[at].IsLine() || len(parts[at].Messages) == 0) {
		at--
	}
	if at < 0 || !parts[at].First().Out || parts[at].Mark != "" {
		return nil
	}
	for state, mark := range map[owner.SendState]string{owner.SendQueued: "on its way", owner.SendFailed: "not delivered", owner.SendUnknown: "perhaps not delivered"} {
		entries, err := r.ListOutbox(ctx, latest(state, ""))
		if err != nil {
			return err
		}
		for _, e := range entries.Items {
			if id := parts[at].First().ID; string(e.MessageID) == id || string(e.First) == id {
				parts[at].Mark = strings.TrimSuffix(mark+": "+e.Err.String(), ": ")
			}
		}
	}
	return nil
}
