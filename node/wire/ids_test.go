package wire

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
	"testing"
)

// TestIDs checks AM-1.
func TestIDs(t *testing.T) {
	tests := []struct {
		name, rest string
		ok         bool
	}{
		{"empty", "", false},
		{"one", "a", true},
		{"all characters", "AZaz09._-", true},
		{"128", strings.Repeat("x", 128), true},
		{"129", strings.Repeat("x", 129), false},
		{"slash", "a/b", false},
		{"space", "a b", false},
		{"line feed at the end", "a\n", false},
		{"NUL", "a\x00", false},
		{"percent", "a%2e", false},
		{"e acute", "é", false},
		{"cyrillic a", "\u0430", false},
		{"kelvin sign", "\u212a", false},
		{"fullwidth a", "\uff41", false},
		{"dots only", "..", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := AgentID("am_" + tt.rest).Valid(); got != tt.ok {
				t.Errorf("AgentID = %v, want %v", got, tt.ok)
			}
			if got := MessageID("msg_" + tt.rest).Valid(); got != tt.ok {
				t.Errorf("MessageID = %v, want %v", got, tt.ok)
			}
			if got := ConversationID("conv_" + tt.rest).Valid(); got != tt.ok {
				t.Errorf("ConversationID = %v, want %v", got, tt.ok)
			}
			if AgentID(tt.rest).Valid() || AgentID("AM_"+tt.rest).Valid() || AgentID("sk_"+tt.rest).Valid() || MessageID("am_"+tt.rest).Valid() {
				t.Error("another prefix was accepted")
			}
		})
	}
}

func TestNewIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		m, c := NewMessageID(), NewConversationID()
		if !m.Valid() || !c.Valid() || len(m) != len("msg_")+32 || len(c) != len("conv_")+32 {
			t.Fatalf("created %s and %s: want 128 bits in hex (AM-2)", m, c)
		}
		if seen[string(m)] || seen[string(c)] {
			t.Fatal("created the same id twice")
		}
		seen[string(m)], seen[string(c)] = true, true
	}
}

func TestDeriveAgentID(t *testing.T) {
	key := make([]byte, 32)
	sum := sha256.Sum256(key)
	want := "am_" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:26])
	if got := DeriveAgentID(key); string(got) != want || !got.Valid() {
		t.Errorf("DeriveAgentID = %s, want %s", got, want)
	}
	if DeriveAgentID([]byte("a"), []byte("b")) == DeriveAgentID([]byte("ab")) {
		t.Error("parts run into each other")
	}
	sum = sha256.Sum256([]byte("agentmesh-bridge\x00agentrelay:free\x00agent-042"))
	want = "am_" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:26])
	if got := DeriveAgentID([]byte("agentmesh-bridge"), []byte("agentrelay:free"), []byte("agent-042")); string(got) != want {
		t.Errorf("pseudonym = %s, want %s", got, want)
	}
}

// TestVersion checks AM-3.
func TestVersion(t *testing.T) {
	for s, want := range map[string]bool{
		"0.1.0": true, "0.1.7": true, "0.1.10": true, "0.1.7-x": true, "0.1.0-draft": true, "0.1.0-rc.1": true,
		"": false, "0.1": false, "0.1.": false, "0.2.0": false, "1.1.0": false, "0.10.0": false, "0.1.x": false, "0.1.01": false,
		"0.1.-x": false, "0.1.0-": false, "0.1.0 ": false, " 0.1.0": false, "0.1.0-é": false, "0.1.0-a_b": false, "0.1.+1": false,
		"v0.1.0": false, "0.1.0.0": false, "0.1.0\n": false, "0.1." + strings.Repeat("9", 100): false,
	} {
		if got := validVersion(s); got != want {
			t.Errorf("validVersion(%q) = %v, want %v", s, got, want)
		}
	}
}

// TestDerivedShape checks that only am_ and 26 of [a-z2-7] has the derived shape, and that our random ids, which are
// hex, never have it (AM-2).
func TestDerivedShape(t *testing.T) {
	for s, want := range map[AgentID]bool{
		"am_" + AgentID(strings.Repeat("a", 26)):                                          true,
		"am_" + AgentID(strings.Repeat("7", 26)):                                          true,
		"am_" + AgentID(strings.Repeat("a", 25)):                                          false,
		"am_" + AgentID(strings.Repeat("a", 27)):                                          false,
		"am_" + AgentID(strings.Repeat("a", 25)) + "A":                                    false,
		"am_" + AgentID(strings.Repeat("a", 25)) + "1":                                    false,
		"am_" + AgentID(strings.Repeat("a", 12)) + "-" + AgentID(strings.Repeat("a", 13)): false,
		"AM_" + AgentID(strings.Repeat("a", 26)):                                          false,
		"am_0123456789abcdef":                                                             false, // what the reference client sends
		"":                                                                                false,
	} {
		if got := s.HasDerivedShape(); got != want {
			t.Errorf("%s: HasDerivedShape = %v, want %v", s, got, want)
		}
	}
	if !DeriveAgentID([]byte("x")).HasDerivedShape() || AgentID("am_"+randomHex()).HasDerivedShape() {
		t.Error("a derived id must have the shape, a random one must not")
	}
	sum := sha256.Sum256([]byte("x"))
	if got, want := DeriveAgentID([]byte("x")).KeyDigits(), hex.EncodeToString(sum[:16]); got != want || AgentID("am_x").KeyDigits() != "" {
		t.Errorf("KeyDigits = %s, want %s", got, want)
	}
}
