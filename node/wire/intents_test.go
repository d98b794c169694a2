package wire

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestIntentKinds(t *testing.T) {
	tests := []struct {
		name                    Intent
		valid, standard, custom bool
	}{
		{"mesh.schedule", true, true, false},
		{"mesh.unknown", true, true, false},
		{"com.example.invoice", true, false, true},
		{"com.example", true, false, true},
		{"example", true, false, false},
		{"Mesh.schedule", true, false, true},
		{"mesh", true, false, false},
		{"a..b", true, false, false},
		{".a.b", true, false, false},
		{"a.b.", true, false, false},
		{".", true, false, false},
		{"", false, false, false},
		{"com.example/x", false, false, false},
		{Intent("com." + strings.Repeat("x", 125)), false, false, false},
	}
	for _, tt := range tests {
		if tt.name.Valid() != tt.valid || tt.name.IsStandard() != tt.standard || tt.name.IsCustom() != tt.custom {
			t.Errorf("%q: valid %v standard %v custom %v", tt.name, tt.name.Valid(), tt.name.IsStandard(), tt.name.IsCustom())
		}
	}
	for _, i := range StandardIntents() {
		if !i.IsStandard() || shapes[i] == nil {
			t.Errorf("%s has no shapes", i)
		}
	}
	if len(StandardIntents()) != len(shapes) {
		t.Error("the list of standard intents and the table of shapes differ")
	}
}

// action is one row of AM-69: the smallest payload that is accepted, its required and its optional paths.
type action struct {
	intent   Intent
	minimal  string
	required []string          // dotted paths below the payload
	optional map[string]string // path → an example
	wrong    map[string]string // path → a value of the right type that is refused
}

var actions = []action{
	{Schedule, `{"action":"propose","event":{"title":"Coffee","proposed_times":["2026-02-21T14:00:00-08:00"],"duration":"30m"}}`,
		[]string{"event", "event.title", "event.proposed_times", "event.duration"},
		map[string]string{"event.location": `"Sightglass"`, "event.notes": `"by the window"`},
		map[string]string{"event.proposed_times": `[]`}},
	{Schedule, `{"action":"counter","event":{}}`, []string{"event"},
		map[string]string{"event.title": `"Tea"`, "event.proposed_times": `["2026-02-21"]`, "event.duration": `"45m"`, "event.location": `"x"`, "event.notes": `"y"`},
		map[string]string{"event.proposed_times": `["soon"]`}},
	{Schedule, `{"action":"accept"}`, nil, map[string]string{"selected_time": `"2026-02-21T14:00:00-08:00"`}, nil},
	{Schedule, `{"action":"decline"}`, nil, nil, nil},
	{Schedule, `{"action":"cancel"}`, nil, nil, nil},
	{Deliver, `{"action":"deliver","message":{"body":"Hello"}}`, []string{"message", "message.body"},
		map[string]string{"message.subject": `"Hi"`, "message.priority": `"high"`, "message.reply_requested": `true`},
		map[string]string{"message.priority": `"urgent"`}},
	{RequestInfo, `{"action":"ask","question":"When?"}`, []string{"question"},
		map[string]string{"context": `"trip"`, "response_format": `"structured"`}, map[string]string{"response_format": `"xml"`}},
	{Negotiate, `{"action":"propose","terms":{"description":"Logo"}}`, []string{"terms", "terms.description"},
		map[string]string{"terms.price": `"100 EUR"`, "terms.conditions": `["net 30"]`}, map[string]string{"terms.conditions": `[1]`}},
	{Negotiate, `{"action":"counter","terms":{"description":"Logo"}}`, []string{"terms", "terms.description"},
		map[string]string{"terms.price": `"90 EUR"`, "terms.conditions": `[]`}, nil},
	{Negotiate, `{"action":"accept"}`, nil, nil, nil},
	{Negotiate, `{"action":"reject"}`, nil, nil, nil},
	{Negotiate, `{"action":"withdraw"}`, nil, nil, nil},
	{Handoff, `{"action":"request_human","reason":"complaint"}`, []string{"reason"},
		map[string]string{"preferred_channel": `"phone"`}, map[string]string{"preferred_channel": `"fax"`}},
}

// set returns v with val at a dotted path, or without the member at path if val is "".
func set(t testing.TB, v Value, path, val string) Value {
	head, rest, nested := strings.Cut(path, ".")
	if nested {
		return v.With(head, set(t, must(v.Get(head)), rest, val))
	}
	if val == "" {
		return v.Without(head)
	}
	return v.With(head, mustParse(t, val))
}

func TestCheckPayload(t *testing.T) {
	covered := map[Intent][]string{}
	for _, a := range actions {
		minimal := mustParse(t, a.minimal)
		name := fmt.Sprintf("%s %s", a.intent, minimal.GetStr("action"))
		covered[a.intent] = append(covered[a.intent], minimal.GetStr("action"))
		t.Run(name, func(t *testing.T) {
			accepts := func(what string, v Value) {
				t.Helper()
				if known, err := CheckPayload(a.intent, v); !known || err != nil {
					t.Errorf("%s: CheckPayload = %v, %v, want accepted", what, known, err)
				}
			}
			refuses := func(what, path string, v Value) {
				t.Helper()
				_, err := CheckPayload(a.intent, v)
				field, ok := errors.AsType[*FieldError](err)
				if !ok || field.Field != "payload."+path {
					t.Errorf("%s: CheckPayload = %v, want a *FieldError about payload.%s", what, err, path)
				}
			}
			accepts("minimal", minimal)
			accepts("with extras", minimal.With("x_extra", Obj()).With("selected_time", Text("Friday, tenish")))
			for _, path := range a.required {
				refuses("missing "+path, path, set(t, minimal, path, ""))
				refuses("null "+path, path, set(t, minimal, path, "null"))
				refuses("number "+path, path, set(t, minimal, path, "7"))
				refuses("boolean "+path, path, set(t, minimal, path, "true"))
			}
			for path, example := range a.optional {
				accepts("with "+path, set(t, minimal, path, example))
				accepts("null "+path, set(t, minimal, path, "null"))
				refuses("number "+path, path, set(t, minimal, path, "7"))
				refuses("object "+path, path, set(t, minimal, path, "{}"))
			}
			for path, val := range a.wrong {
				refuses("bad "+path, path, set(t, minimal, path, val))
			}
		})
	}
	for intent, byAction := range shapes {
		if want, got := slices.Sorted(maps.Keys(byAction)), slices.Sorted(slices.Values(covered[intent])); !slices.Equal(want, got) {
			t.Errorf("%s: the table of this test covers %v, the code has %v", intent, got, want)
		}
	}
}

func TestCheckPayloadActions(t *testing.T) {
	tests := []struct {
		name    string
		intent  Intent
		payload string
		known   bool
		ok      bool
	}{
		{"unknown action passes", Schedule, `{"action":"confirmed"}`, false, true},
		{"unknown action of the reference", Deliver, `{"action":"received","will_reply":true}`, true, true},
		{"close", Negotiate, `{"action":"close","status":"completed"}`, true, true},
		{"pending", Handoff, `{"action":"pending_approval","estimated_response":"5m"}`, true, true},
		{"action of another intent", Deliver, `{"action":"propose"}`, false, true},
		{"unknown standard intent", "mesh.dance", `{"action":"waltz"}`, false, true},
		{"no action", Schedule, `{}`, false, false},
		{"action null", Schedule, `{"action":null}`, false, false},
		{"action number", Schedule, `{"action":1}`, false, false},
		{"action in another case", Schedule, `{"Action":"accept"}`, false, false},
		{"unknown standard intent without action", "mesh.dance", `{}`, false, false},
		{"custom intent needs no action", "com.example.x", `{}`, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			known, err := CheckPayload(tt.intent, mustParse(t, tt.payload))
			if known != tt.known && tt.ok || (err == nil) != tt.ok {
				t.Errorf("CheckPayload = %v, %v, want %v, ok %v", known, err, tt.known, tt.ok)
			}
		})
	}
}

func TestParseISO8601(t *testing.T) {
	for s, want := range map[string]time.Time{
		"2026-02-21T14:00:00-08:00": time.Date(2026, 2, 21, 22, 0, 0, 0, time.UTC),
		"2026-02-21T14:00:00-0800":  time.Date(2026, 2, 21, 22, 0, 0, 0, time.UTC),
		"2026-02-21T14:00:00.5Z":    time.Date(2026, 2, 21, 14, 0, 0, 5e8, time.UTC),
		"2026-02-21T14:00Z":         time.Date(2026, 2, 21, 14, 0, 0, 0, time.UTC),
		"2026-02-21T14:00":          time.Date(2026, 2, 21, 14, 0, 0, 0, time.UTC),
		"2026-02-21":                time.Date(2026, 2, 21, 0, 0, 0, 0, time.UTC),
	} {
		if got, ok := ParseISO8601(s); !ok || !got.Equal(want) {
			t.Errorf("ParseISO8601(%s) = %v, %v", s, got, ok)
		}
	}
	for _, s := range []string{"", "tomorrow", "14:00", "2026-02-30", "2026-02-21T25:00", strings.Repeat("2", 65)} {
		if got, ok := ParseISO8601(s); ok {
			t.Errorf("ParseISO8601(%q) = %v", s, got)
		}
	}
}

// TestReceiptOfCustomIntent (AM-91): every node answers with received and pending_approval. All else in a custom intent is for
// its agents.
func TestReceiptOfCustomIntent(t *testing.T) {
	for _, tt := range []struct {
		payload         string
		standard, isOne bool
	}{
		{`{"action":"received"}`, true, true},
		{`{"action":"pending_approval","reason":"later","metadata":{"in_reply_to":"msg_1"}}`, true, true},
		{`{"action":"received","table":"4"}`, false, false},
		{`{"action":"confirmed"}`, true, false},
		{`{"action":"close","status":"completed"}`, true, false},
		{`{"table":"4"}`, false, false},
	} {
		payload, err := Parse([]byte(tt.payload))
		if err != nil {
			t.Fatal(err)
		}
		if got := IsReceipt(Schedule, payload); got != tt.standard {
			t.Errorf("%s in mesh.schedule: %t", tt.payload, got)
		}
		if got := IsReceipt("com.example.table.book", payload); got != tt.isOne {
			t.Errorf("%s in a custom intent: %t", tt.payload, got)
		}
	}
}
