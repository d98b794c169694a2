package bridge_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestPseudonym: pseudonyms appear in transcripts, so every version must compute the same ones. The expected values
// come from another program, written from the description.
func TestPseudonym(t *testing.T) {
	for _, tt := range []struct {
		address string
		want    wire.AgentID
	}{
		{"agentrelay:free/agent-042", "am_u6gma3ysbnfm7aoiobroy75gl4"},
		{"mew:home/cat", "am_is53kbpe7b24c35pi2grqq2dfv"},
		{"toy:a/b/c:d", "am_dld5vkkhyyelnb6ziysennwshp"},
		{"toy:free/ägent", "am_unxg76bttc3n7o3vggqdl2ngka"},
	} {
		a, err := bridge.ParseAddress(tt.address)
		if err != nil {
			t.Errorf("ParseAddress(%s): %v", tt.address, err)
			continue
		}
		if got := a.Pseudonym(); got != tt.want || !got.Valid() {
			t.Errorf("pseudonym of %s = %s, want %s", tt.address, got, tt.want)
		}
	}
}

func TestParseAddress(t *testing.T) {
	for _, s := range []string{"toy:link/peer", "mess:l-1/a@b.example", "mew:home/x/y", "toy:1/" + strings.Repeat("x", 256)} {
		a, err := bridge.ParseAddress(s)
		if err != nil || a.String() != s {
			t.Errorf("ParseAddress(%q) = %q, %v, want it back", s, a, err)
		}
	}
	for _, s := range []string{
		"", "toy", "toy:", "toy:link", "toy:link/", ":link/peer", "toy:/peer", "Toy:link/peer", "t oy:link/peer",
		"toy:Link/peer", "toy:-link/peer", "toy:li_nk/peer", "toy:../peer", "toy:link/pe er", "toy:link/pe\ter",
		"toy:link/pe\x00er", "toy:link/pe\x1b[31mer", "toy:link/pe\u202eer", "toy:link/pe\xffer",
		"toy:link/" + strings.Repeat("x", 257), "toy:" + strings.Repeat("x", 65) + "/peer", strings.Repeat("x", 33) + ":link/peer",
	} {
		if a, err := bridge.ParseAddress(s); err == nil {
			t.Errorf("ParseAddress(%q) = %q, want an error", s, a)
		}
	}
}

// TestPseudonymBorders: two peers never share a pseudonym because the border between link and peer moved.
func TestPseudonymBorders(t *testing.T) {
	part := rapid.StringMatching(`[a-c]{1,3}`)
	rapid.Check(t, func(t *rapid.T) {
		a := bridge.Address{Kind: "toy", Link: part.Draw(t, "link"), Peer: part.Draw(t, "peer")}
		b := bridge.Address{Kind: "toy", Link: part.Draw(t, "other link"), Peer: part.Draw(t, "other peer")}
		if (a == b) != (a.Pseudonym() == b.Pseudonym()) {
			t.Fatalf("%s: %s, %s: %s", a, a.Pseudonym(), b, b.Pseudonym())
		}
	})
}

func TestMark(t *testing.T) {
	const mark = `"bridge":{"kind":"toy","link":"home","peer":"cat","verified":false}`
	a := bridge.Address{Kind: "toy", Link: "home", Peer: "cat"}
	for in, want := range map[string]string{
		`{}`:                               `{"metadata":{` + mark + `}}`,
		`{"a":1,"metadata":{"b":2}}`:       `{"a":1,"metadata":{"b":2,` + mark + `}}`,
		`{"metadata":"none"}`:              `{"metadata":{` + mark + `}}`,
		`{"metadata":{"bridge":"forged"}}`: `{"metadata":{` + mark + `}}`,
	} {
		payload, err := wire.Parse([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(a.Mark(payload, false).JSON()); got != want {
			t.Errorf("Mark(%s) = %s, want %s", in, got, want)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	f.Add("agentrelay:free/agent-042")
	f.Add("toy:a/b:c/d")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := bridge.ParseAddress(s)
		if err != nil {
			return
		}
		if a.String() != s || !a.Pseudonym().Valid() {
			t.Errorf("ParseAddress(%q) = %q, pseudonym %q", s, a, a.Pseudonym())
		}
	})
}
