package calendar

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Limits bound what the scheduler may agree to without asking the owner. With the zero value, it asks before every
// agreement.
type Limits struct {
	Accept      bool          // agree to times that fit; otherwise only offer other times
	Strangers   bool          // agree also with senders that the owner has not admitted permanently
	MaxDuration time.Duration // longest event to which to agree; zero: 1 h
	PerDay      int           // events on one day to which to agree; zero: 4
	Rounds      int           // our counters in one conversation before the owner is asked; zero: 3
}

const (
	defaultMaxDuration = time.Hour
	defaultPerDay      = 4
	defaultRounds      = 3
	offersPerCounter   = 3 // times in one counter
)

// Scheduler answers mesh.schedule for the owner. It is safe for concurrent use.
type Scheduler struct {
	Planner *Planner
	Book    *Book // the agreed events, which PerDay counts
	Limits  Limits
}

// Question is a message of a mesh.schedule conversation that may need an answer. If it offers terms, Offered is set; if
// it accepts terms that we offered, Accepted is set. Other messages need no answer. The text in the terms is untrusted.
type Question struct {
	Conversation string // identifies the conversation, including its peer
	Offered      *conversations.Terms
	Accepted     *conversations.Terms
	Known        bool // the owner has permanently admitted the sender
	Rounds       int  // counters that we already sent in this conversation
	Approved     bool // the owner was asked and approved
}

// Reply is the answer to a [Question]. At most one field is set; if both are zero, no answer is needed.
type Reply struct {
	Payload wire.Value // the payload to send; zero for none
	Hold    string     // the reason why the owner must decide; "" if the owner need not decide
}

// Answer returns the reply to a question. It never fails: if it cannot judge a question, the reply holds it for the
// owner.
func (s *Scheduler) Answer(ctx context.Context, q Question, now time.Time) Reply {
	switch {
	case q.Offered != nil:
		return s.answerOffer(ctx, q, now)
	case q.Accepted != nil:
		return s.answerAcceptance(ctx, q, now)
	}
	return Reply{} // a decline or a cancel needs no answer
}

// wish contains the times and the length of an offer.
type wish struct {
	times    []time.Time
	duration time.Duration
}

// readWish parses the times and the length of an offer.
func readWish(offer conversations.Terms) (wish, error) {
	var w wish
	for _, text := range offer.Times {
		t, ok := wire.ParseInstant(text)
		if !ok {
			return w, errors.New("a proposed time is not readable as a time with its offset")
		}
		w.times = append(w.times, t)
	}
	d, ok := ParseLength(offer.Duration)
	if !ok {
		return w, errors.New("the length of the event is not readable")
	}
	w.duration = d
	return w, nil
}

func (s *Scheduler) answerOffer(ctx context.Context, q Question, now time.Time) Reply {
	w, err := readWish(*q.Offered)
	if err != nil {
		return hold(err.Error())
	}
	if len(w.times) == 0 {
		return hold("no time is proposed")
	}
	view, err := s.Planner.Look(ctx, q.Conversation, now)
	if err != nil {
		return hold("a calendar cannot be read: " + err.Error())
	}
	for _, t := range w.times {
		if view.Judge(t, w.duration) != Free {
			continue
		}
		if why := s.holdReason(ctx, q, t, w.duration, now); why != "" {
			return hold(fmt.Sprintf("%s fits; %s", t.In(s.Planner.Zone()).Format("Mon 2 Jan 15:04"), why))
		}
		if s.Planner.Reserve(q.Conversation, Interval{t, t.Add(w.duration)}, now) {
			return Reply{Payload: wire.Obj(
				wire.Member{Key: "action", Value: wire.Text("accept")},
				wire.Member{Key: "selected_time", Value: wire.Text(t.In(s.Planner.Zone()).Format(time.RFC3339))},
			)}
		}
	}
	return s.counter(q, view, w)
}

// counter offers free times, or declines if no time is free.
func (s *Scheduler) counter(q Question, view View, w wish) Reply {
	if !q.Approved && q.Rounds >= orCount(s.Limits.Rounds, defaultRounds) {
		return hold("the two calendars do not meet after several offers")
	}
	near := view.Near(w.times[0], w.duration, offersPerCounter)
	if len(near) == 0 {
		return Reply{Payload: wire.Obj(
			wire.Member{Key: "action", Value: wire.Text("decline")},
			wire.Member{Key: "reason", Value: wire.Text("no free time around the proposed ones")},
		)}
	}
	texts := make([]string, len(near))
	for i, t := range near {
		texts[i] = t.In(s.Planner.Zone()).Format(time.RFC3339)
	}
	members := []wire.Member{
		{Key: "title", Value: wire.Text(q.Offered.Title)},
		{Key: "proposed_times", Value: wire.Texts(texts)},
		{Key: "duration", Value: wire.Text(length(w.duration))},
	}
	if at := q.Offered.Location; at != "" {
		members = append(members, wire.Member{Key: "location", Value: wire.Text(at)})
	}
	return Reply{Payload: wire.Obj(
		wire.Member{Key: "action", Value: wire.Text("counter")},
		wire.Member{Key: "event", Value: wire.Obj(members...)},
	)}
}

// answerAcceptance answers the acceptance of a time that we offered. If the time still fits, it answers with an accept.
func (s *Scheduler) answerAcceptance(ctx context.Context, q Question, now time.Time) Reply {
	w, err := readWish(*q.Accepted)
	if err != nil || len(w.times) != 1 {
		return hold("it was accepted, but it is not clear for when")
	}
	t, d := w.times[0], w.duration
	view, err := s.Planner.Look(ctx, q.Conversation, now)
	if err != nil {
		return hold("a calendar cannot be read: " + err.Error())
	}
	if v := view.Judge(t, d); v != Free {
		return hold("it was accepted, but the time is " + string(v) + " by now")
	}
	if why := s.holdReason(ctx, q, t, d, now); why != "" {
		return hold(why)
	}
	if !s.Planner.Reserve(q.Conversation, Interval{t, t.Add(d)}, now) {
		return hold("it was accepted, but the time was promised to somebody else meanwhile")
	}
	return Reply{Payload: wire.Obj(wire.Member{Key: "action", Value: wire.Text("accept")})}
}

// holdReason returns the reason why the owner must be asked before we agree to an event, or "" if the owner need not be
// asked.
func (s *Scheduler) holdReason(ctx context.Context, q Question, t time.Time, d time.Duration, now time.Time) string {
	if q.Approved {
		return ""
	}
	most := s.Limits.MaxDuration
	if most == 0 {
		most = defaultMaxDuration
	}
	switch {
	case !s.Limits.Accept:
		return "agreeing is left to you"
	case !q.Known && !s.Limits.Strangers:
		return "the sender is a stranger"
	case d > most:
		return "it is longer than " + length(most)
	}
	n, err := s.Book.CountOn(ctx, t.In(s.Planner.Zone()), now)
	if err != nil {
		return "the events agreed for that day cannot be counted"
	}
	if n >= orCount(s.Limits.PerDay, defaultPerDay) {
		return fmt.Sprintf("%d events were agreed for that day already", n)
	}
	return ""
}

func orCount(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

func hold(why string) Reply { return Reply{Hold: why} }

// lengths matches the ways in which people and programs write a duration.
var lengths = regexp.MustCompile(`^(?:(\d{1,3})\s*(?:h|hr|hrs|hour|hours))?\s*(?:(\d{1,4})\s*(?:m|min|mins|minute|minutes))?$`)

// maxLength is the longest event length that ParseLength accepts.
const maxLength = 24 * time.Hour

// ParseLength parses "30 minutes", "45m", "1h30m", "1 hour" or ISO 8601's "PT45M".
func ParseLength(text string) (time.Duration, bool) {
	text = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(text)), "pt")
	m := lengths.FindStringSubmatch(text)
	if m == nil || text == "" {
		return 0, false
	}
	hours, _ := strconv.Atoi(m[1]) // absent is 0
	mins, _ := strconv.Atoi(m[2])
	d := time.Duration(hours)*time.Hour + time.Duration(mins)*time.Minute
	return d, 0 < d && d <= maxLength
}

// length writes d in a form that ParseLength reads.
func length(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dm", d/time.Minute)
}
