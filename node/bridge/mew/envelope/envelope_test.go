package envelope

import (
	"strings"
	"testing"
	"time"
)

// TestParse: each fault is refused for its own reason, and a valid envelope is delivered with its fields set.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		`{"kind":"chat"}`: "",
		`{"kind":"chat","to":"a","correlation_id":null,"context":null,"payload":{"a":1e999}}`: "",
		`{`:                                  "not valid JSON",
		`[]`:                                 "must be a JSON object",
		`{"kind":"a","kind":"b"}`:            "not valid JSON",
		`{"id":1,"kind":"chat"}`:             "id must be a string",
		`{"id":"","kind":"chat"}`:            "id must be a string",
		`{}`:                                 "kind must be a string",
		`{"kind":"chat","protocol":"mew/1"}`: "Invalid protocol version",
		`{"kind":"chat","ts":1}`:             "ts must be a string",
		`{"kind":"chat","from":null}`:        "from must be a string",
		`{"kind":"chat","context":1}`:        "context must be a string",
		`{"kind":"chat","to":[""]}`:          "to must be an array",
		`{"kind":"chat","correlation_id":1}`: "correlation_id must be an array",
		`{"kind":"chat","payload":[]}`:       "payload must be an object",
		`{"kind":"` + strings.Repeat("k", MaxKind+1) + `"}`:                 "kind must be a string",
		`{"kind":"chat","x":"` + strings.Repeat("x", MaxEnvelope) + `"}`:    "too large",
		`{"kind":"chat","x":` + strings.Repeat("[", MaxDepth+1) + `]}`:      "not valid JSON",
		`{"kind":"chat","x":[` + strings.Repeat("1,", MaxValues) + `1]}`:    "not valid JSON",
		`{"kind":"chat","to":[` + strings.Repeat(`"a",`, MaxList) + `"a"]}`: "to must be an array",
	} {
		e, refusal := Parse([]byte(text))
		switch {
		case want == "" && refusal != nil:
			t.Errorf("%.80s: refused with %s", text, refusal.Payload.JSON())
		case want == "":
			e.ID, e.Time, e.From = "i", "t", "me"
			again, refusal := Parse(e.AppendDelivery(nil, []string{"bob"}))
			if refusal != nil || again.From != "me" || again.ID != "i" || len(again.To) != len(e.To) || len(e.To) > 0 && again.To[0] != "bob" {
				t.Errorf("%s is delivered as %s, %v", text, again.Tree.JSON(), refusal)
			}
		case refusal == nil || !strings.Contains(string(refusal.Payload.JSON()), want):
			t.Errorf("%.80s: %v, want %q", text, refusal, want)
		}
	}
}

// TestIsName: a name with a meaning in a path, a frame or the protocol is not the name of a participant.
func TestIsName(t *testing.T) {
	for name, want := range map[string]bool{
		"cat": true, "Zoë 2": true, "": false, FromStream: false, FromSystem: false, "system:x": false, "a/b": false, `a\b`: false, "a#b": false,
		"a..b": false, "a\x00": false, "a\xff": false, strings.Repeat("n", MaxName): true, strings.Repeat("n", MaxName+1): false,
	} {
		if got := IsName(name); got != want {
			t.Errorf("IsName(%q) = %t", name, got)
		}
	}
}

// TestRefuseRate: a sender that waits as long as the refusal says has waited long enough.
func TestRefuseRate(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		time.Millisecond: "1", time.Second: "1", 1400 * time.Millisecond: "2", 59*time.Second + 1: "60", time.Minute: "60",
	} {
		after, _ := RefuseRate(wait).Payload.Get("retry_after")
		if got, _ := after.Num(); got != want {
			t.Errorf("%v: retry_after %s, want %s", wait, got, want)
		}
	}
}
