package calendar_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/work"
)

// now is a Tuesday, 10 March 2026, 07:00 in Berlin.
var now = time.Date(2026, 3, 10, 6, 0, 0, 0, time.UTC)

func zone(t testing.TB) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// at returns a time in March 2026 on the owner's clock.
func at(t testing.TB, day, hour, minute int) time.Time {
	return time.Date(2026, 3, day, hour, minute, 0, 0, zone(t))
}

// folder returns a calendar of events, which are written as "20260310T090000/PT1H" on the owner's clock.
func folder(t testing.TB, events ...string) calendar.Files {
	t.Helper()
	dir := t.TempDir()
	for i, e := range events {
		start, length, _ := strings.Cut(e, "/")
		text := "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nBEGIN:VEVENT\r\nUID:" + start + "\r\nDTSTART:" + start + "\r\nDURATION:" + length + "\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
		if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i))+".ics"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return calendar.Files{Path: dir}
}

func planner(t testing.TB, cfg calendar.Config) *calendar.Planner {
	t.Helper()
	cfg.Zone = zone(t)
	p, err := calendar.NewPlanner(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestJudge(t *testing.T) {
	hours, err := calendar.ParseHours("mon-thu 09:00-12:00 13:00-17:00, fri 09:00-12:00")
	if err != nil {
		t.Fatal(err)
	}
	p := planner(t, calendar.Config{
		Sources: []calendar.Source{folder(t, "20260310T140000/PT1H")}, Hours: hours, Buffer: 15 * time.Minute, Notice: 2 * time.Hour,
	})
	view, err := p.Look(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		start time.Time
		d     time.Duration
		want  calendar.Verdict
	}{
		{"free", at(t, 10, 9, 0), time.Hour, calendar.Free},
		{"up to the buffer", at(t, 10, 13, 0), 45 * time.Minute, calendar.Free},
		{"into the buffer", at(t, 10, 13, 0), time.Hour, calendar.Taken},
		{"in the event", at(t, 10, 14, 30), 10 * time.Minute, calendar.Taken},
		{"after the buffer", at(t, 10, 15, 15), time.Hour, calendar.Free},
		{"across lunch", at(t, 10, 11, 30), time.Hour, calendar.Outside},
		{"Friday afternoon", at(t, 13, 13, 0), time.Hour, calendar.Outside},
		{"Saturday", at(t, 14, 10, 0), time.Hour, calendar.Outside},
		{"within the notice", at(t, 10, 8, 30), time.Hour, calendar.TooSoon},
		{"yesterday", at(t, 9, 10, 0), time.Hour, calendar.TooSoon},
		{"next year", now.AddDate(1, 0, 0), time.Hour, calendar.TooFar},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := view.Judge(tt.start, tt.d); got != tt.want {
				t.Errorf("Judge(%v, %v) = %q, want %q", tt.start, tt.d, got, tt.want)
			}
		})
	}
}

// TestJudgeWithoutNotice: an owner who wants no notice gets none.
func TestJudgeWithoutNotice(t *testing.T) {
	view, err := planner(t, calendar.Config{Sources: []calendar.Source{folder(t)}}).Look(t.Context(), at(t, 10, 9, 0))
	if err != nil {
		t.Fatal(err)
	}
	if got := view.Judge(at(t, 10, 9, 0), time.Hour); got != calendar.Free {
		t.Errorf("an event that begins now is %q", got)
	}
}

func TestNear(t *testing.T) {
	p := planner(t, calendar.Config{Sources: []calendar.Source{folder(t, "20260311T090000/PT3H", "20260329T090000/PT1H")}})
	view, err := p.Look(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	near := func(wished time.Time, n int) []string {
		var out []string
		for _, f := range view.Near(wished, time.Hour, n, time.Time{}) {
			out = append(out, f.In(zone(t)).Format("2 15:04"))
		}
		return out
	}
	if diff := cmp.Diff([]string{"11 12:00", "11 13:00", "11 14:00"}, near(at(t, 11, 10, 0), 3)); diff != "" {
		t.Errorf("around a morning that is taken: %s", diff)
	}
	if diff := cmp.Diff([]string{"10 09:00"}, near(at(t, 1, 10, 0), 1)); diff != "" {
		t.Errorf("around a day that is over: %s", diff)
	}
	// The clocks change on Sunday the 29th: Monday still begins at nine.
	if diff := cmp.Diff([]string{"30 09:00"}, near(at(t, 30, 8, 0), 1)); diff != "" {
		t.Errorf("after the clock change: %s", diff)
	}
}

func TestParseHours(t *testing.T) {
	for _, text := range []string{"", "mon", "someday 09:00-10:00", "mon 9-5", "mon 10:00-09:00", "mon 10:00-10:00", "mon 25:00-26:00", "mon-xyz 09:00-10:00"} {
		if _, err := calendar.ParseHours(text); err == nil {
			t.Errorf("ParseHours(%q) was accepted", text)
		}
	}
	for _, text := range []string{calendar.DefaultHours, "sat-mon 00:00-24:00", "MON 09:00-10:00,  tue 10:00-11:00 12:00-13:00"} {
		if _, err := calendar.ParseHours(text); err != nil {
			t.Errorf("ParseHours(%q) = %v", text, err)
		}
	}
}

func TestParseLength(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30 minutes": 30 * time.Minute, "45m": 45 * time.Minute, "1h30m": 90 * time.Minute, "1 hour": time.Hour,
		"PT45M": 45 * time.Minute, "2 Hours 15 mins": 135 * time.Minute, "90min": 90 * time.Minute,
		"": 0, "soon": 0, "0m": 0, "-5m": 0, "25h": 0, "1e9 minutes": 0, "30": 0, "PT": 0,
	} {
		if got, ok := calendar.ParseLength(text); ok != (want != 0) || ok && got != want {
			t.Errorf("ParseLength(%q) = %v, %v, want %v", text, got, ok, want)
		}
	}
}

// broken is a calendar that cannot be read.
type broken struct{}

func (broken) Name() string { return "broken" }
func (broken) Busy(context.Context, calendar.Interval, *time.Location) ([]calendar.Interval, []calendar.Problem, error) {
	return nil, nil, errors.New("no answer")
}

func records(t testing.TB) store.Records { return database(t).Records() }

func database(t testing.TB) store.Store {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "calendar.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return store.Observe(s)
}

// runBook writes the events of a book until ctx ends.
func runBook(ctx context.Context, s store.Store, book *calendar.Book) {
	w := work.New(s, nil, slog.New(slog.DiscardHandler))
	w.Add(book.Queue())
	w.Run(ctx)
}

// newOffer returns a question about an offer from a known peer.
func newOffer(duration string, times ...string) calendar.Question {
	return calendar.Question{Event: calendar.UID("am_x", "conv_2"), Known: true, Offered: &conversations.Terms{Title: "Coffee", Times: times, Duration: duration}}
}

// newAcceptance returns a question about an acceptance of times that we offered.
func newAcceptance(duration string, times ...string) calendar.Question {
	return calendar.Question{Event: calendar.UID("am_x", "conv_2"), Known: true, Accepted: &conversations.Terms{Times: times, Duration: duration}}
}

// TestAnswer plays the messages of mesh.schedule against a calendar in which Wednesday morning is taken.
func TestAnswer(t *testing.T) {
	const wed, thu = "2026-03-11T10:00:00+01:00", "2026-03-12T10:00:00+01:00"
	wednesday, thursday := newOffer("30 minutes", wed), newOffer("30 minutes", wed, thu)
	const accepts = `{"action":"accept","selected_time":"` + thu + `"}`
	free := calendar.Limits{Accept: true}
	for _, tt := range []struct {
		name   string
		q      calendar.Question
		change func(*calendar.Scheduler, *calendar.Question)
		want   string // the payload, or the reason to hold behind "hold: "
	}{
		{"a time that fits", thursday, nil, accepts},
		{"no time fits", wednesday, func(_ *calendar.Scheduler, q *calendar.Question) {
			at := *q.Offered
			at.Location = "Sightglass"
			q.Offered = &at
		}, `{"action":"counter","event":{"title":"Coffee","proposed_times":["2026-03-11T12:00:00+01:00","2026-03-11T13:00:00+01:00","2026-03-11T14:00:00+01:00"],"duration":"30m","location":"Sightglass"}}`},
		{"no time fits, after an offer of ours", wednesday, func(_ *calendar.Scheduler, q *calendar.Question) {
			q.Rounds, q.Before = 1, []string{"2026-03-11T12:00:00+01:00", "2026-03-11T13:00:00+01:00"}
		}, `{"action":"counter","event":{"title":"Coffee","proposed_times":["2026-03-11T14:00:00+01:00","2026-03-11T15:00:00+01:00","2026-03-11T16:00:00+01:00"],"duration":"30m"}}`},
		{"agreeing is the owner's", thursday, func(s *calendar.Scheduler, _ *calendar.Question) { s.Limits.Accept = false },
			"hold: Thu 12 Mar 10:00 fits; agreeing is left to you"},
		{"a stranger", thursday, func(_ *calendar.Scheduler, q *calendar.Question) { q.Known = false },
			"hold: Thu 12 Mar 10:00 fits; the sender is a stranger"},
		{"a permitted stranger", thursday, func(s *calendar.Scheduler, q *calendar.Question) { q.Known, s.Limits.Strangers = false, true },
			accepts},
		{"too long", newOffer("2 hours", wed, thu), nil, "hold: Thu 12 Mar 10:00 fits; the event is longer than 1h"},
		{"too many rounds", wednesday, func(_ *calendar.Scheduler, q *calendar.Question) { q.Rounds = 3 },
			"hold: after several offers, no time suits both calendars"},
		{"no free time at all", wednesday, func(s *calendar.Scheduler, _ *calendar.Question) {
			s.Planner = planner(t, calendar.Config{Sources: []calendar.Source{folder(t, "20260301T000000/P60D")}})
		}, `{"action":"decline","reason":"no free time around the proposed ones"}`},
		{"a calendar that cannot be read", thursday, func(s *calendar.Scheduler, _ *calendar.Question) {
			s.Planner = planner(t, calendar.Config{Sources: []calendar.Source{broken{}}})
		}, "hold: a calendar cannot be read: no answer"},
		{"a time without an offset", newOffer("30 minutes", "2026-03-11T10:00:00"), nil, "hold: a proposed time is not a readable time with an offset from UTC"},
		{"an invalid length", newOffer("a while", wed), nil, "hold: the length of the event is not readable"},
		{"nothing proposed", newOffer("30m"), nil, "hold: no time is proposed"},
		{"accept of what we offered", newAcceptance("45m", "2026-03-12T11:00:00+01:00"), nil, `{"action":"accept"}`},
		{"accept of a time that is taken by now", newAcceptance("45m", wed), nil, "hold: your offer was accepted, but the time is taken by now"},
		{"accept of nothing", newAcceptance(""), nil, "hold: your offer was accepted, but it is not clear for which time"},
		{"neither", calendar.Question{Known: true}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &calendar.Scheduler{
				Planner: planner(t, calendar.Config{Sources: []calendar.Source{folder(t, "20260311T090000/PT3H")}}),
				Book:    calendar.NewBook(calendar.BookConfig{Records: records(t)}), Limits: free,
			}
			q := tt.q
			if tt.change != nil {
				tt.change(s, &q)
			}
			r := s.Answer(t.Context(), q, now)
			got := "hold: " + r.Hold
			if r.Hold == "" {
				got = ""
				if r.Payload.Kind() == wire.Object {
					got = string(r.Payload.JSON())
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPromisedOnce: two conversations that ask for the same time at once get it once; the same conversation gets it
// again.
func TestPromisedOnce(t *testing.T) {
	s := &calendar.Scheduler{
		Planner: planner(t, calendar.Config{Sources: []calendar.Source{folder(t)}}),
		Book:    calendar.NewBook(calendar.BookConfig{Records: records(t)}), Limits: calendar.Limits{Accept: true},
	}
	answer := func(conv string, now time.Time) string {
		q := newOffer("1h", "2026-03-12T10:00:00+01:00")
		q.Event = conv
		return s.Answer(t.Context(), q, now).Payload.GetStr("action")
	}
	got := []string{answer("one", now), answer("two", now), answer("one", now), answer("two", now.Add(11*time.Minute))}
	if diff := cmp.Diff([]string{"accept", "counter", "accept", "accept"}, got); diff != "" {
		t.Errorf("answers: %s", diff)
	}
}

// TestCancelledIsFree: the time of a cancelled event is free at once, although it was promised for ten minutes.
func TestCancelledIsFree(t *testing.T) {
	recs := records(t)
	book := calendar.NewBook(calendar.BookConfig{Records: recs})
	s := &calendar.Scheduler{Planner: planner(t, calendar.Config{Sources: []calendar.Source{folder(t), book}}), Book: book, Limits: calendar.Limits{Accept: true}}
	commit := func(changes ...store.Change) {
		t.Helper()
		if err := recs.Apply(t.Context(), changes, now); err != nil {
			t.Fatal(err)
		}
		s.Planner.OnCommit(changes)
	}
	answer := func(uid string) string {
		q := newOffer("1h", "2026-03-12T10:00:00+01:00")
		q.Event = uid
		return s.Answer(t.Context(), q, now).Payload.GetStr("action")
	}
	e := calendar.Event{UID: calendar.UID("am_x", "conv_1"), Title: "x", Start: at(t, 12, 10, 0), Duration: time.Hour, Made: now}
	got := []string{answer(e.UID)}
	commit(book.Add(e))
	got = append(got, answer(calendar.UID("am_y", "conv_1")))
	_, cancelled, err := book.Cancel(t.Context(), e.UID, now)
	if err != nil {
		t.Fatal(err)
	}
	commit(cancelled...)
	got = append(got, answer(calendar.UID("am_y", "conv_1")))
	if diff := cmp.Diff([]string{"accept", "counter", "accept"}, got); diff != "" {
		t.Errorf("answers: %s", diff)
	}
}

// oneADay returns a scheduler that accepts one event a day. agree stores an event with a peer, on 12 March from 10 to
// 11.
func oneADay(t *testing.T) (s *calendar.Scheduler, agree func(peer string)) {
	recs := records(t)
	book := calendar.NewBook(calendar.BookConfig{Records: recs})
	s = &calendar.Scheduler{
		Planner: planner(t, calendar.Config{Sources: []calendar.Source{folder(t), book}}), Book: book,
		Limits: calendar.Limits{Accept: true, PerDay: 1},
	}
	return s, func(peer string) {
		e := calendar.Event{UID: calendar.UID(peer, "conv_1"), Title: "x", Start: at(t, 12, 10, 0), Duration: time.Hour, Made: now}
		if err := recs.Apply(t.Context(), []store.Change{book.Add(e)}, now); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPartialCalendar: while a file of a calendar cannot be read, the owner decides about times that seem free.
func TestPartialCalendar(t *testing.T) {
	calendars := folder(t, "20260312T090000/PT3H")
	if err := os.WriteFile(filepath.Join(calendars.Path, "z.ics"), []byte("BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nUID:"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &calendar.Scheduler{
		Planner: planner(t, calendar.Config{Sources: []calendar.Source{calendars}}), Book: calendar.NewBook(calendar.BookConfig{Records: records(t)}),
		Limits: calendar.Limits{Accept: true},
	}
	if r := s.Answer(t.Context(), newOffer("1h", "2026-03-12T15:00:00+01:00"), now); !goldentest.Says(t, "a time that seems free", r.Hold) {
		t.Errorf("a time that seems free: %+v", r)
	}
	if r := s.Answer(t.Context(), newOffer("1h", "2026-03-12T10:00:00+01:00"), now); r.Payload.GetStr("action") != "counter" {
		t.Errorf("a busy time: %+v", r)
	}
}

// TestMoveOntoItself: an event that is moved by less than its length does not conflict with itself, and another event
// at the same time still does.
func TestMoveOntoItself(t *testing.T) {
	s, agree := oneADay(t)
	q := newOffer("1h", "2026-03-12T10:30:00+01:00")
	q.Event = calendar.UID("am_x", "conv_1")
	agree("am_x")
	if r := s.Answer(t.Context(), q, now); r.Payload.GetStr("action") != "accept" {
		t.Errorf("a move by half an hour: %+v", r)
	}
	agree("am_y")
	if r := s.Answer(t.Context(), q, now); r.Payload.GetStr("action") != "counter" {
		t.Errorf("a move to a time that another event takes: %+v", r)
	}
}

// TestPerDay: an event agreed for a day counts, and takes its time, before any calendar shows it.
func TestPerDay(t *testing.T) {
	s, agree := oneADay(t)
	agree("am_x")
	ask := func(when string) calendar.Reply {
		return s.Answer(t.Context(), newOffer("1h", when), now)
	}
	if r := ask("2026-03-12T10:30:00+01:00"); r.Payload.GetStr("action") != "counter" {
		t.Errorf("a time that was agreed with somebody else: %+v", r)
	}
	if r := ask("2026-03-12T15:00:00+01:00"); !goldentest.Says(t, "a second event", r.Hold) {
		t.Errorf("a second event of the day: %+v", r)
	}
	if r := ask("2026-03-13T15:00:00+01:00"); r.Payload.GetStr("action") != "accept" {
		t.Errorf("the next day: %+v", r)
	}
}
