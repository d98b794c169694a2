package wire

import (
	"encoding/json"
	"testing"
	"time"
)

// TestListingTimes checks that the answers of a directory contain times in the format of AM-19, whatever their zone and
// precision were, and that they are read back as the same instant.
func TestListingTimes(t *testing.T) {
	at := time.Date(2026, 2, 19, 2, 30, 0, 123456789, time.FixedZone("", -8*3600))
	const stamp = `"2026-02-19T10:30:00.123Z"`
	tests := []struct {
		name string
		v    any
		want string
	}{
		{"Registered", Registered{"am_a", at, at}, `{"agent_id":"am_a","registered_at":` + stamp + `,"expires_at":` + stamp + `}`},
		{"Registered by the reference's PUT", Registered{AgentID: "am_a", ExpiresAt: at}, `{"agent_id":"am_a","expires_at":` + stamp + `}`},
		{"Verification", Verification{Key: &at, ID: "derived"}, `{"id":"derived","key":` + stamp + `,"endpoint":null,"alive":null}`},
		{"CardRecord", CardRecord{Card: Obj(), RegisteredAt: at, ExpiresAt: at, Verification: Verification{ID: "opaque", KeyChangedAt: &at}},
			`{"card":{},"verification":{"id":"opaque","key":null,"endpoint":null,"alive":null,"key_changed_at":` + stamp + `},` +
				`"registered_at":` + stamp + `,"expires_at":` + stamp + `}`},
		{"KeyHistory", KeyHistory{"am_a", []KeyChange{{PublicKey: "k", Since: at, Retired: at}, {PublicKey: "l", Since: at}}},
			`{"agent_id":"am_a","keys":[{"public_key":"k","since":` + stamp + `,"retired":` + stamp + `},{"public_key":"l","since":` + stamp + `}]}`},
	}
	for _, tt := range tests {
		got, err := json.Marshal(tt.v)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != tt.want {
			t.Errorf("%s = %s\nwant %s", tt.name, got, tt.want)
		}
	}
	var back Registered
	if err := json.Unmarshal([]byte(tests[0].want), &back); err != nil || !back.ExpiresAt.Equal(at.Truncate(time.Millisecond)) {
		t.Errorf("read back %+v, %v", back, err)
	}
}

// TestUnescapeHTML: the escapes of json.Marshal become characters, other text stays as it is, and the value stays the
// same.
func TestUnescapeHTML(t *testing.T) {
	for _, text := range []string{"R&D <b> x > y", `C:\u003c`, `\\u0026`, "a\\", "\n\t\"\u2028", `\`, ""} {
		escaped, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal([]byte(UnescapeHTML(escaped)), &back); err != nil || back != text {
			t.Errorf("UnescapeHTML(%s) = %s, which means %q, %v", escaped, UnescapeHTML(escaped), back, err)
		}
	}
	if got := UnescapeHTML([]byte(`{"a":"R\u0026D \u003c\\u003e"}`)); got != `{"a":"R&D <\\u003e"}` {
		t.Errorf("UnescapeHTML = %s", got)
	}
}
