package calendar

import (
	"cmp"
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
	Accept      bool          // agree to times that fit; if false, ask the owner about them
	Strangers   bool          // also agree with senders that the owner has not admitted permanently
	MaxDuration time.Duration // length of the longest event to agree to; zero: 1 h
	PerDay      int           // largest number of agreed events that take place on one day; zero: 4
	Rounds      int           // number of our counteroffers in one conversation before the owner is asked; zero: 3
}

const (
	defaultMaxDuration = time.Hour
	defaultPerDay      = 4
	defaultRounds      = 3
	timesPerCounter    = 3 // times in one counteroffer
)

// Scheduler answers mesh.schedule for the owner. It is safe for concurrent use.
type Scheduler struct {
	Planner *Planner
	Book    *Book // the agreed events, which PerDay counts
	Limits  Limits
}

// Question is a message of a mesh.schedule conversation that may need an answer. If it offers terms, Offered is set;
// if it accepts terms that we offered, Accepted is set. Other messages need no answer. The text in the terms is
// untrusted.
type Question struct {
	Event    string // the [UID] of the event of this conversation
	Offered  *conversations.Terms
	Accepted *conversations.Terms
	Known    bool     // the owner has permanently admitted the sender, or began this conversation
	Rounds   int      // counteroffers that we already sent in this conversation
	Before   []string // times that we already offered in this conversation
	Approved bool     // the owner was asked and approved
}

// Reply is the answer to a [Question]. At most one field is set; if both are zero, no answer is needed.
type Reply struct {
	Payload wire.Value // the payload to send; zero for none
	Hold    string     // the reason why the owner must decide; "" if the owner need not decide
}

// Answer returns the reply to a question. If a question cannot be judged, the reply holds the message for the owner.
func (s *Scheduler) Answer(ctx context.Context, q Question, now time.Time) Reply {
	switch {
	case q.Offered != nil:
		return s.answerOffer(ctx, q, now)
	case q.Accepted != nil:
		return s.answerAcceptance(ctx, q, now)
	}
	return Reply{} // a decline or a cancel needs no answer
}

// offer contains the times and the length of an offered event.
type offer struct {
	times    []time.Time
	duration time.Duration
}

func parseOffer(terms conversations.Terms) (offer, error) {
	var o offer
	for _, text := range terms.Times {
		t, ok := wire.ParseInstant(text)
		if !ok {
			return o, errors.New("a proposed time is not a readable time with an offset from UTC")
		}
		o.times = append(o.times, t)
	}
	d, ok := ParseLength(terms.Duration)
	if !ok {
		return o, errors.New("the length of the event is not readable")
	}
	o.duration = d
	return o, nil
}

// answerOffer accepts the first offered time that fits, or asks the owner about it. If no time fits, it offers others.
func (s *Scheduler) answerOffer(ctx context.Context, q Question, now time.Time) Reply {
	o, err := parseOffer(*q.Offered)
	if err != nil {
		return hold(err.Error())
	}
	if len(o.times) == 0 {
		return hold("no time is proposed")
	}
	view, err := s.look(ctx, q.Event, now)
	if err != nil {
		return hold("a calendar cannot be read: " + err.Error())
	}
	for _, t := range o.times {
		if view.Judge(t, o.duration) != Free {
			continue
		}
		if reason := s.holdReason(ctx, q, view, t, o.duration); reason != "" {
			return hold(fmt.Sprintf("%s fits; %s", t.In(s.Planner.Zone()).Format("Mon 2 Jan 15:04"), reason))
		}
		if s.Planner.Reserve(q.Event, Interval{t, t.Add(o.duration)}, now) {
			return Reply{Payload: wire.Obj(wire.TextField("action", "accept"), wire.TextField("selected_time", t.In(s.Planner.Zone()).Format(time.RFC3339Nano)))}
		}
	}
	return s.proposeOthers(q, view, o)
}

// Fits reports whether every time of an appointment is free. If promise is set, it also keeps the only time free for the
// appointment until an agreement comes. A nil scheduler has no free time.
func (s *Scheduler) Fits(ctx context.Context, uid string, terms conversations.Terms, promise bool, now time.Time) bool {
	o, err := parseOffer(terms)
	if s == nil || err != nil || len(o.times) == 0 || promise && len(o.times) > 1 {
		return false
	}
	view, err := s.look(ctx, uid, now)
	if err != nil || view.isPartial() {
		return false
	}
	for _, t := range o.times {
		if view.Judge(t, o.duration) != Free {
			return false
		}
	}
	return !promise || s.Planner.Reserve(uid, Interval{o.times[0], o.times[0].Add(o.duration)}, now)
}

// look returns the view for a question about an event. The time for which the event was agreed before counts as free,
// because a new agreement moves the event.
func (s *Scheduler) look(ctx context.Context, uid string, now time.Time) (View, error) {
	entry, err := s.Book.find(ctx, uid, now)
	if err != nil {
		return View{}, err
	}
	agreed := Interval{entry.Event.Start, entry.Event.Start.Add(entry.Event.Duration)}
	return s.Planner.look(ctx, uid, agreed, now)
}

// proposeOthers offers free times that are later than those it offered before (AM-94), or declines if no time is free. After too many rounds it holds the message for the
// owner.
func (s *Scheduler) proposeOthers(q Question, view View, o offer) Reply {
	if !q.Approved && q.Rounds >= cmp.Or(s.Limits.Rounds, defaultRounds) {
		return hold("after several offers, no time suits both calendars")
	}
	var last time.Time
	for _, text := range q.Before {
		if t, ok := wire.ParseInstant(text); ok && t.After(last) {
			last = t
		}
	}
	near := view.Near(o.times[0], o.duration, timesPerCounter, last)
	if len(near) == 0 {
		return Reply{Payload: wire.Obj(wire.TextField("action", "decline"), wire.TextField("reason", "no free time around the proposed ones"))}
	}
	texts := make([]string, len(near))
	for i, t := range near {
		texts[i] = t.In(s.Planner.Zone()).Format(time.RFC3339)
	}
	members := []wire.Member{
		wire.TextField("title", q.Offered.Title), wire.Field("proposed_times", wire.Texts(texts)), wire.TextField("duration", formatLength(o.duration)),
	}
	if location := q.Offered.Location; location != "" {
		members = append(members, wire.TextField("location", location))
	}
	return Reply{Payload: wire.Obj(wire.TextField("action", "counter"), wire.Field("event", wire.Obj(members...)))}
}

// answerAcceptance answers the acceptance of a time that we offered. If the time still fits and the limits allow it,
// the answer is an accept; otherwise the owner must decide.
func (s *Scheduler) answerAcceptance(ctx context.Context, q Question, now time.Time) Reply {
	o, err := parseOffer(*q.Accepted)
	if err != nil || len(o.times) != 1 {
		return hold("your offer was accepted, but it is not clear for which time")
	}
	t, d := o.times[0], o.duration
	view, err := s.look(ctx, q.Event, now)
	if err != nil {
		return hold("a calendar cannot be read: " + err.Error())
	}
	if v := view.Judge(t, d); v != Free {
		return hold("your offer was accepted, but the time is " + string(v) + " by now")
	}
	if reason := s.holdReason(ctx, q, view, t, d); reason != "" {
		return hold(reason)
	}
	if !s.Planner.Reserve(q.Event, Interval{t, t.Add(d)}, now) {
		return hold("your offer was accepted, but the time was promised to somebody else meanwhile")
	}
	return Reply{Payload: wire.Obj(wire.TextField("action", "accept"))}
}

// holdReason returns why the owner must be asked before we agree to an event, or "" if we may agree.
func (s *Scheduler) holdReason(ctx context.Context, q Question, view View, t time.Time, d time.Duration) string {
	if q.Approved {
		return ""
	}
	maxDuration := cmp.Or(s.Limits.MaxDuration, defaultMaxDuration)
	switch {
	case !s.Limits.Accept:
		return "agreeing is left to you"
	case !q.Known && !s.Limits.Strangers:
		return "the sender is a stranger"
	case view.isPartial():
		return "a part of a calendar cannot be read"
	case d > maxDuration:
		return "the event is longer than " + formatLength(maxDuration)
	}
	n, err := s.Book.countOn(ctx, t.In(s.Planner.Zone()), q.Event, view.now)
	if err != nil {
		return "the events agreed for that day cannot be counted"
	}
	if n >= cmp.Or(s.Limits.PerDay, defaultPerDay) {
		return fmt.Sprintf("%d events were agreed for that day already", n)
	}
	return ""
}

func hold(reason string) Reply { return Reply{Hold: reason} }

// lengthPattern matches the ways in which people and programs write a duration.
var lengthPattern = regexp.MustCompile(`^(?:(\d{1,3})\s*(?:h|hr|hrs|hour|hours))?\s*(?:(\d{1,4})\s*(?:m|min|mins|minute|minutes))?$`)

const maxLength = 24 * time.Hour // the longest length that ParseLength accepts

// ParseLength parses "30 minutes", "45m", "1h30m", "1 hour" or ISO 8601's "PT45M".
func ParseLength(text string) (time.Duration, bool) {
	text = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(text)), "pt")
	m := lengthPattern.FindStringSubmatch(text)
	if m == nil || text == "" {
		return 0, false
	}
	hours, _ := strconv.Atoi(m[1]) // absent is 0
	mins, _ := strconv.Atoi(m[2])
	d := time.Duration(hours)*time.Hour + time.Duration(mins)*time.Minute
	return d, 0 < d && d <= maxLength
}

// formatLength writes d in a form that ParseLength reads.
func formatLength(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dm", d/time.Minute)
}
