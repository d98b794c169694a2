package conversations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	ten       = "2026-02-21T10:00:00-08:00"
	tenInUTC  = "2026-02-21T18:00:00Z"
	two       = "2026-02-21T14:00:00-08:00"
	elsewhere = "Sightglass"
)

// TestJudgeAccept checks AM-88: whether an accept agrees, selects nothing, or is a proposal of its own depends on what
// it names.
func TestJudgeAccept(t *testing.T) {
	one := conversations.Terms{Title: "Coffee", Times: []string{ten}, Duration: "30m", Location: "Blue Bottle"}
	several := one
	several.Times = []string{ten, two}
	open, openTime, anyPlace := one, one, one
	open.Location, openTime.Times, anyPlace.Location = "tbd", nil, ""
	deal := conversations.Terms{Description: "A website", Price: "$500", Conditions: []string{"by May", "in Go"}}
	long := conversations.Terms{Title: strings.Repeat("é", 5000), Times: []string{ten}}
	with := func(t conversations.Terms, change func(*conversations.Terms)) conversations.Terms {
		change(&t)
		return t
	}
	at := func(t conversations.Terms, times ...string) conversations.Terms { t.Times = times; return t }

	for _, tt := range []struct {
		name   string
		offer  conversations.Terms
		accept string
		want   conversations.Verdict
		terms  conversations.Terms
	}{
		{"a bare accept of one time", one, `{"action":"accept"}`, conversations.Agreed, one},
		{"the time that was offered", one, `{"action":"accept","selected_time":"` + ten + `"}`, conversations.Agreed, one},
		{"the same instant", one, `{"action":"accept","selected_time":"` + tenInUTC + `"}`, conversations.Agreed, one},
		{"in its event", one, `{"action":"accept","event":{"selected_time":"` + ten + `","title":"Coffee"}}`, conversations.Agreed, one},
		{"the whole event", one, `{"action":"accept","event":{"title":"Coffee","proposed_times":["` + ten + `"],"duration":"30m","location":"Blue Bottle"}}`, conversations.Agreed, one},
		{"what names nothing", one, `{"action":"accept","title":"","duration":null,"location":[],"event":{},"terms":{},"proposed_times":[]}`, conversations.Agreed, one},
		{"other members", one, `{"action":"accept","message":"See you!","terms":{"price":"$5"},"notes":"bring cake"}`, conversations.Agreed, one},
		{"one of several", several, `{"action":"accept","selected_time":"` + two + `"}`, conversations.Agreed, at(one, two)},
		{"one of several as a list", several, `{"action":"accept","event":{"proposed_times":["` + two + `"]}}`, conversations.Agreed, at(one, two)},
		{"one of several, with the event again", several, `{"action":"accept","selected_time":"` + two + `","event":{"proposed_times":["` + ten + `","` + two + `"]}}`, conversations.Agreed, at(one, two)},
		{"a place that was open", open, `{"action":"accept","location":"Sightglass"}`, conversations.Agreed, with(one, func(t *conversations.Terms) { t.Location = elsewhere })},
		{"a place that was not named", anyPlace, `{"action":"accept","event":{"location":"Sightglass"}}`, conversations.Agreed, with(one, func(t *conversations.Terms) { t.Location = elsewhere })},
		{"no time was offered", openTime, `{"action":"accept"}`, conversations.Agreed, openTime},
		{"the title of 5000 characters", long, `{"action":"accept","title":"` + strings.Repeat("é", 5000) + `"}`, conversations.Agreed, long},
		{"terms", deal, `{"action":"accept","terms":{"description":"A website","price":"$500","conditions":["by May","in Go"]}}`, conversations.Agreed, deal},
		{"empty terms", deal, `{"action":"accept","terms":{}}`, conversations.Agreed, deal},

		{"none of several", several, `{"action":"accept"}`, conversations.Ambiguous, conversations.Terms{}},
		{"all of several", several, `{"action":"accept","event":{"proposed_times":["` + ten + `","` + two + `"]}}`, conversations.Ambiguous, conversations.Terms{}},
		{"none of several, another title", several, `{"action":"accept","title":"Lunch"}`, conversations.Ambiguous, conversations.Terms{}},

		{"another time", one, `{"action":"accept","selected_time":"` + two + `"}`, conversations.Counter, at(one, two)},
		{"another time where none was offered", openTime, `{"action":"accept","selected_time":"` + two + `"}`, conversations.Counter, at(one, two)},
		{"a time without an offset", one, `{"action":"accept","selected_time":"2026-02-21T10:00:00"}`, conversations.Counter, at(one, "2026-02-21T10:00:00")},
		{"another list of times", several, `{"action":"accept","event":{"proposed_times":["2026-02-22","2026-02-23"]}}`, conversations.Counter, at(one, "2026-02-22", "2026-02-23")},
		{"two of several", several, `{"action":"accept","selected_time":"` + ten + `","event":{"selected_time":"` + two + `"}}`, conversations.Counter, at(one, two, ten)},
		{"the offered time and another one", one, `{"action":"accept","selected_time":"` + ten + `","event":{"proposed_times":["` + two + `"]}}`, conversations.Counter, one},
		{"another title", one, `{"action":"accept","title":"Lunch"}`, conversations.Counter, with(one, func(t *conversations.Terms) { t.Title = "Lunch" })},
		{"another length", one, `{"action":"accept","event":{"duration":"8h"}}`, conversations.Counter, with(one, func(t *conversations.Terms) { t.Duration = "8h" })},
		{"another place", one, `{"action":"accept","location":"My house"}`, conversations.Counter, with(one, func(t *conversations.Terms) { t.Location = "My house" })},
		{"a place of another type", one, `{"action":"accept","location":{"name":"My house"}}`, conversations.Counter, with(one, func(t *conversations.Terms) { t.Location = `{"name":"My house"}` })},
		{"an event that is a text", one, `{"action":"accept","event":"Lunch"}`, conversations.Counter, with(one, func(t *conversations.Terms) { t.Title = "Lunch" })},
		{"two titles", one, `{"action":"accept","title":"Lunch","event":{"title":"Coffee"}}`, conversations.Counter, one},
		{"another price", deal, `{"action":"accept","terms":{"price":"$600"}}`, conversations.Counter, with(deal, func(t *conversations.Terms) { t.Price = "$600" })},
		{"another description", deal, `{"action":"accept","terms":{"description":"Two websites"}}`, conversations.Counter, with(deal, func(t *conversations.Terms) { t.Description = "Two websites" })},
		{"other conditions", deal, `{"action":"accept","terms":{"conditions":["by May"]}}`, conversations.Counter, with(deal, func(t *conversations.Terms) { t.Conditions = []string{"by May"} })},
		{"terms that are a text", deal, `{"action":"accept","terms":"for $600"}`, conversations.Counter, with(deal, func(t *conversations.Terms) { t.Description = "for $600" })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			intent := wire.Schedule
			if tt.offer.Description != "" {
				intent = wire.Negotiate
			}
			verdict, terms := conversations.JudgeAccept(proposalOf(t, intent, tt.offer), payload(t, tt.accept))
			want := tt.terms
			if tt.want == conversations.Agreed { // texts that are too long are cut
				want = proposalOf(t, intent, tt.terms).Terms
			}
			if verdict != tt.want {
				t.Errorf("verdict = %s, want %s", verdict, tt.want)
			}
			if diff := cmp.Diff(want, terms); diff != "" {
				t.Errorf("terms (-want +got):\n%s", diff)
			}
		})
	}
}

// payloadOf writes terms as a payload of an intent.
func payloadOf(intent wire.Intent, action string, terms conversations.Terms) wire.Value {
	member, inside := "event", wire.Obj(
		wire.Member{Key: "title", Value: wire.Text(terms.Title)}, wire.Member{Key: "proposed_times", Value: wire.Texts(terms.Times)},
		wire.Member{Key: "duration", Value: wire.Text(terms.Duration)}, wire.Member{Key: "location", Value: wire.Text(terms.Location)},
	)
	if intent == wire.Negotiate {
		member, inside = "terms", wire.Obj(
			wire.Member{Key: "description", Value: wire.Text(terms.Description)}, wire.Member{Key: "price", Value: wire.Text(terms.Price)},
			wire.Member{Key: "conditions", Value: wire.Texts(terms.Conditions)},
		)
	}
	return wire.Obj(wire.Member{Key: "action", Value: wire.Text(action)}, wire.Member{Key: member, Value: inside})
}

// proposalOf returns the standing proposal after we have proposed terms.
func proposalOf(t interface {
	Helper()
	Fatal(...any)
}, intent wire.Intent, terms conversations.Terms) conversations.Proposal {
	t.Helper()
	c, err := conversations.Conversation{}.Next(conversations.Event{
		Kind: conversations.Sent, At: start, Intent: intent, Payload: payloadOf(intent, "propose", terms),
	}, idle)
	if err != nil || c.Deal(intent).Proposal == nil {
		t.Fatal("no proposal stands", err)
	}
	return *c.Deal(intent).Proposal
}

// TestLongTextsStayDifferent checks that a text that is cut is not confused with another text with the same beginning.
func TestLongTextsStayDifferent(t *testing.T) {
	start := strings.Repeat("A website. ", 500)
	p := proposalOf(t, wire.Negotiate, conversations.Terms{Description: start + "$500", Conditions: slices.Repeat([]string{"c"}, 40)})
	if n := len([]rune(p.Description)); n > 1024 || len(p.Conditions) > 16 {
		t.Errorf("a description of %d characters and %d conditions are kept", n, len(p.Conditions))
	}
	for accept, want := range map[string]conversations.Verdict{
		`{"terms":{"description":"` + start + `$500"}}`: conversations.Agreed,
		`{"terms":{"description":"` + start + `$600"}}`: conversations.Counter,
	} {
		if got, _ := conversations.JudgeAccept(p, payload(t, accept)); got != want {
			t.Errorf("verdict = %s, want %s", got, want)
		}
	}
	times := make([]string, 1000)
	for i := range times {
		times[i] = strings.Repeat("x", i)
	}
	if p := proposalOf(t, wire.Schedule, conversations.Terms{Times: times}); len(p.Times) > 50 || len(p.Times[len(p.Times)-1]) > 64 {
		t.Errorf("%d times are kept", len(p.Times))
	}
}

// TestAgreementIsContained checks that, whatever two sides send, the agreement is contained in the accepted proposal
// and is never edited: only another accepted proposal replaces it.
func TestAgreementIsContained(t *testing.T) {
	texts := rapid.SampledFrom([]string{"", "", "A", "B", "TBD", "null", strings.Repeat("é", 2000)})
	times := rapid.SliceOfN(rapid.SampledFrom([]string{ten, tenInUTC, two, "2026-02-22", "soon"}), 0, 3)
	value := rapid.Custom(func(t *rapid.T) wire.Value {
		terms := conversations.Terms{
			Title: texts.Draw(t, "title"), Times: times.Draw(t, "times"), Duration: texts.Draw(t, "duration"), Location: texts.Draw(t, "location"),
			Description: texts.Draw(t, "description"), Price: texts.Draw(t, "price"), Conditions: rapid.SliceOfN(texts, 0, 2).Draw(t, "conditions"),
		}
		action := rapid.SampledFrom([]string{"propose", "counter", "accept", "accept", "accept", "decline", "cancel", "withdraw", "received"}).Draw(t, "action")
		v := payloadOf(rapid.SampledFrom([]wire.Intent{wire.Schedule, wire.Negotiate}).Draw(t, "shape"), action, terms)
		if at := times.Draw(t, "selected"); len(at) > 0 {
			v = v.With("selected_time", wire.Text(at[0]))
		}
		return v
	})
	ids := rapid.SampledFrom([]wire.MessageID{"", "msg_1", "msg_2", "msg_3"})
	rapid.Check(t, func(t *rapid.T) {
		var c conversations.Conversation
		// The proposal that our accept answered before our later proposal overtook that accept.
		overtaken := make(map[wire.Intent]conversations.Proposal)
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			e := conversations.Event{
				Kind: rapid.SampledFrom([]conversations.Kind{
					conversations.Received, conversations.Received, conversations.Sent, conversations.Replied,
					conversations.AcceptCounts, conversations.AcceptCounts, conversations.Delivered, conversations.HeldByPeer,
				}).Draw(t, "kind"),
				At: start, Until: start, Written: start, Payload: value.Draw(t, "payload"),
				Intent: rapid.SampledFrom([]wire.Intent{wire.Schedule, wire.Schedule, wire.Negotiate}).Draw(t, "intent"),
				ID:     ids.Draw(t, "id"), Answers: ids.Draw(t, "answers"), Direct: rapid.Bool().Draw(t, "direct"),
			}
			next, err := c.Next(e, idle)
			if err != nil {
				continue
			}
			for i, now := range next.Deals() {
				was, intent := c.Deals()[i], []wire.Intent{wire.Schedule, wire.Negotiate}[i]
				checkDeal(t, e, was, now, overtaken, intent)
			}
			c = next
		}
	})
}

// checkDeal checks what an event does to what stands for one intent. overtaken has, for each intent, the proposal that our
// accept answered before a later proposal overtook it.
func checkDeal(t *rapid.T, e conversations.Event, was, now conversations.Deal, overtaken map[wire.Intent]conversations.Proposal, intent wire.Intent) {
	a := now.Agreement
	switch {
	case a == nil || a == was.Agreement:
	case was.Agreement != nil && (a.Cancelled != nil || a.Doubtful):
		if before := *was.Agreement; !cmp.Equal(before, func() conversations.Agreement {
			b := *a
			b.Cancelled, b.Doubtful = before.Cancelled, before.Doubtful
			return b
		}()) {
			t.Fatalf("a cancelled agreement was edited: %+v, was %+v", a, before)
		}
	case e.Kind != conversations.AcceptCounts || was.Proposal == nil || a.Intent != intent:
		t.Fatalf("kind %d with proposal %+v made an agreement of %s", e.Kind, was.Proposal, a.Intent)
	case was.Overtaken != nil && now.Overtaken == nil:
		checkContained(t, overtaken[intent], *a)
	default:
		checkContained(t, *was.Proposal, *a)
	}
	if now.Overtaken != nil && now.Overtaken != was.Overtaken && e.Kind <= conversations.Replied { // a delivery only updates it
		overtaken[intent] = *was.Proposal
	}
	if e.Intent != intent && e.Kind <= conversations.Replied && !cmp.Equal(was, now) {
		t.Fatalf("a message of %s changed what stands for %s", e.Intent, intent)
	}
}

func checkContained(t *rapid.T, p conversations.Proposal, a conversations.Agreement) {
	isOpen := p.Location == "" || slices.ContainsFunc([]string{"TBD", "TBA", "to be decided"}, func(s string) bool { return strings.EqualFold(s, p.Location) })
	switch {
	case a.AcceptedBy == p.By:
		t.Fatalf("%s agreed with itself", p.By)
	case a.Intent != p.Intent, a.Title != p.Title, a.Duration != p.Duration, a.Description != p.Description, a.Price != p.Price,
		!slices.Equal(a.Conditions, p.Conditions), a.Location != p.Location && !isOpen:
		t.Fatalf("agreed on %+v, proposed was %+v", a, p)
	case len(p.Times) == 0 && a.Time != "", len(p.Times) > 0 && !slices.Contains(p.Times, a.Time):
		t.Fatalf("agreed for %q, proposed was %q", a.Time, p.Times)
	}
}

// TestJudgeAcceptOfManyTimes: an accept may name only times that were offered, even if the list of them is too long to
// be stored.
func TestJudgeAcceptOfManyTimes(t *testing.T) {
	var all []string
	for i := range 60 {
		all = append(all, fmt.Sprintf("2026-02-21T10:%02d:00Z", i))
	}
	for _, tt := range []struct {
		offered int
		named   []string
		want    conversations.Verdict
	}{
		{50, all[:50], conversations.Agreed},
		{50, append(all[:50:50], two), conversations.Counter},
		{60, all[:49], conversations.Agreed},
		{60, all, conversations.Agreed},
		{60, append(all[:59:59], two), conversations.Counter},
	} {
		p := proposalOf(t, wire.Schedule, conversations.Terms{Times: all[:tt.offered]})
		named := make([]wire.Value, len(tt.named))
		for i, at := range tt.named {
			named[i] = wire.Text(at)
		}
		accept := wire.Obj(wire.TextField("selected_time", all[0]), wire.Member{Key: "proposed_times", Value: wire.Arr(named...)})
		if got, _ := conversations.JudgeAccept(p, accept); got != tt.want {
			t.Errorf("an accept of %d times for %d: %s, want %s", len(named), tt.offered, got, tt.want)
		}
	}
}
