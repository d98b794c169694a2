package moderation

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/signing"
)

func TestParseBan(t *testing.T) {
	seed := sha256.Sum256([]byte("x"))
	key := signing.NewEd25519FromSeed(seed[:])
	sum := listing.Fingerprint(key.Public())
	for _, tt := range []struct {
		text string
		want Ban
	}{
		{"am_x", Ban{Kind: BanID, Value: "am_x"}},
		{sum, Ban{Kind: BanKey, Value: sum}},
		{strings.ToUpper(sum), Ban{Kind: BanKey, Value: sum}},
		{key.PublicText(), Ban{Kind: BanKey, Value: sum}},
		{"203.0.113.7", Ban{Kind: BanNetwork, Value: "203.0.113.7/32"}},
		{"203.0.113.7/24", Ban{Kind: BanNetwork, Value: "203.0.113.0/24"}},
		{"2001:db8::1/48", Ban{Kind: BanNetwork, Value: "2001:db8::/48"}},
		{" Evil.Example. ", Ban{Kind: BanHost, Value: "evil.example"}},
		{"Bücher.example", Ban{Kind: BanHost, Value: "xn--bcher-kva.example"}},
		{"a_b.c-d.xn--p1ai", Ban{Kind: BanHost, Value: "a_b.c-d.xn--p1ai"}},
	} {
		if got, err := ParseBan(tt.text); err != nil || got != tt.want {
			t.Errorf("ParseBan(%q) = %+v, %v, want %+v", tt.text, got, err, tt.want)
		}
	}
	for _, bad := range []string{"", "localhost", "a/b.example", "evil.example:443", "user@evil.example", "am_", "203.0.113.0/33", "*.evil.example", "203.0.113.*", "203.0.113", "203.0.113.256", "evil.example,", "a..b", ".evil.example", strings.Repeat("a.", 200) + "b"} {
		if got, err := ParseBan(bad); err == nil {
			t.Errorf("ParseBan(%q) = %+v, want an error", bad, got)
		}
	}
}
