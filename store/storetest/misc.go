package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/store"
)

func testCancel(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Cards().Put(ctx, store.PutCard{Card: card("am_a"), Now: t0})
	wantErr(t, "Put", err, context.Canceled)
	wantErr(t, "Records.Apply", s.Records().Apply(ctx, []store.Change{put("n", "a")}, t0), context.Canceled)
	_, err = s.Cards().Get(ctx, "am_a", t0)
	wantErr(t, "Get", err, context.Canceled)
	_, err = s.Cards().Count(ctx, t0)
	wantErr(t, "Count", err, context.Canceled)
	_, err = s.Cards().Get(t.Context(), "am_a", t0)
	wantErr(t, "Get", err, store.ErrNotFound)
}

func testClose(t *testing.T, s store.Store) {
	wantOK(t, "Ping", s.Ping(t.Context()))
	wantOK(t, "Close", s.Close())
	wantOK(t, "second Close", s.Close())
	wantErr(t, "Ping after Close", s.Ping(t.Context()), store.ErrUnavailable)
	_, err := s.Cards().Put(t.Context(), store.PutCard{Card: card("am_a"), Now: t0})
	wantErr(t, "Put after Close", err, store.ErrUnavailable)
	_, err = s.Cards().Get(t.Context(), "am_a", t0)
	wantErr(t, "Get after Close", err, store.ErrUnavailable)
	_, err = s.Cards().Count(t.Context(), t0)
	wantErr(t, "Count after Close", err, store.ErrUnavailable)
	_, err = s.Cards().Terms(t.Context(), "", "", 1, t0)
	wantErr(t, "Terms after Close", err, store.ErrUnavailable)
	_, err = s.Cards().List(t.Context(), store.CardQuery{Limit: 1, Now: t0})
	wantErr(t, "List after Close", err, store.ErrUnavailable)
}

func testSlices(t *testing.T, s store.Store) {
	in := card("am_a", "cap:b", "cap:a")
	out := putCard(t, s, in)
	if in.Terms[0] != "cap:b" {
		t.Error("Put sorted the caller's terms")
	}
	in.Body[0], out.Meta[0], out.Terms[0] = 'X', 'X', "cap:x"
	got, err := s.Cards().Get(t.Context(), "am_a", t0)
	wantOK(t, "Get", err)
	if string(got.Body) != "body of am_a" || string(got.Meta) != "meta of am_a" {
		t.Errorf("stored card became %q, %q", got.Body, got.Meta)
	}
	got.Body[0] = 'Y'
	_ = append(got.Body, "overflow"...)
	again, err := s.Cards().Get(t.Context(), "am_a", t0)
	wantOK(t, "Get", err)
	if string(again.Body) != "body of am_a" || string(again.Meta) != "meta of am_a" {
		t.Errorf("stored card became %q, %q", again.Body, again.Meta)
	}
	wantSame(t, "ids", idsOf(t, s, store.CardQuery{All: []string{"cap:a"}}), []string{"am_a"})
}

func testBounds(t *testing.T, s store.Store) {
	long := strings.Repeat("x", 513)
	many := make([]string, store.MaxTerms+1)
	for i := range many {
		many[i] = fmt.Sprintf("cap:%d", i)
	}
	counted := card("am_a")
	counted.Counts = []string{"1", "2", "3", "4", "5"}
	for name, c := range map[string]store.Card{
		"no id":           card(""),
		"long id":         card(long),
		"too many terms":  card("am_a", many...),
		"empty term":      card("am_a", ""),
		"too many counts": counted,
	} {
		_, err := s.Cards().Put(t.Context(), store.PutCard{Card: c, Now: t0})
		wantMistake(t, name, err)
	}
	putCard(t, s, card("am_full", many[1:]...))
	overMax := put("n", "a")
	overMax.Max = 10_001
	for name, c := range map[string]store.Change{
		"no namespace":   put("", "a"),
		"long namespace": put(long[:65], "a"),
		"no key":         put("n", ""),
		"long key":       put("n", long),
		"five terms":     put("n", "a", "1", "2", "3", "4", "5"),
		"empty term":     put("n", "a", ""),
		"large maximum":  overMax,
	} {
		wantMistake(t, name, change(t, s, t0, c))
	}
	wantOK(t, "the longest of everything", change(t, s, t0, put(long[:64], long[:512], "1", "2", "3", long[:512])))
	for _, term := range []string{long, strings.Repeat("x", 1<<16+512)} {
		page, err := s.Records().List(t.Context(), long[:64], term, "", 1, t0)
		if wantOK(t, "a list by a term that no record can have", err); len(page.Records) > 0 {
			t.Errorf("a list by a term of %d bytes found %q", len(term), page.Records[0].Key)
		}
	}
	for name, c := range map[string]store.Conversation{
		"no peer":    conv("", "c"),
		"no id":      conv("p", ""),
		"five terms": {Key: store.ConvKey{Peer: "p", ID: "c"}, Terms: []string{"1", "2", "3", "4", "5"}},
	} {
		_, err := s.Steps().Apply(t.Context(), store.Step{Conv: &c, Now: t0})
		wantMistake(t, name, err)
	}
	if _, err := s.Cards().Get(t.Context(), "am_a", t0); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get = %v, although every Put of this card was refused", err)
	}
}
