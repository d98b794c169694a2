package client

import (
	"strings"
	"testing"
)

// TestJoinLink: the link of a directory leads back to it, and a link that would show the code to a network is refused,
// with an error that does not show it either.
func TestJoinLink(t *testing.T) {
	for _, tt := range []struct{ base, code, link string }{
		{"https://mesh.example/v1", "ABC234", "https://mesh.example/join#ABC234"},
		{"https://mesh.example:8443/cork/v1/", "a-b_c.d~e", "https://mesh.example:8443/cork/join#a-b_c.d~e"},
		{"http://127.0.0.1:3141/v1", "ABC", "http://127.0.0.1:3141/join#ABC"},
		{"http://[::1]:3141/v1", "", "http://[::1]:3141/join"},
	} {
		link := JoinLink(tt.base, tt.code)
		base, code, err := ParseJoinLink(" " + link + "\n")
		if link != tt.link || err != nil || base != strings.TrimRight(tt.base, "/") || string(code) != tt.code {
			t.Errorf("%s: link %q leads to %q %q, %v", tt.base, link, base, string(code), err)
		}
	}
	for _, bad := range []string{
		"", "SECRET", "http://mesh.example/join#SECRET", "http://192.168.1.2/join#SECRET", "ftp://mesh.example/join#SECRET", "https://mesh.example/v1#SECRET",
		"https://mesh.example/join?code=SECRET", "https://user:SECRET@mesh.example/join", "https:///join#SECRET", "//mesh.example/join#SECRET",
		"https://mesh.example/join#SECRET%20x", "https://mesh.example/join#SECRET'; id", "https://mesh.example/join#SECRET\x7f", "https://mesh.example/join#" + strings.Repeat("SECRET", 30),
		"https://localhost.evil.example\x00/join#SECRET",
	} {
		if base, code, err := ParseJoinLink(bad); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("link %q leads to %q %q, %v", bad, base, string(code), err)
		}
	}
}

// TestInviteFor: a link's code goes only to its own directory.
func TestInviteFor(t *testing.T) {
	const links = "https://a.example/join#AAA\nhttps://b.example/join#BBB\n"
	for _, tt := range []struct{ text, base, code string }{
		{links, "https://a.example/v1", "AAA"}, {links, "https://b.example/v1/", "BBB"}, {links, "https://c.example/v1", ""},
		{"CODE\n", "https://c.example/v1", "CODE"}, {links + "CODE", "https://c.example/v1", "CODE"}, {"CODE\n" + links, "https://b.example/v1", "BBB"},
		{"", "https://c.example/v1", ""},
	} {
		if code, err := InviteFor(tt.text, tt.base); err != nil || string(code) != tt.code {
			t.Errorf("%q for %s: %q, %v", tt.text, tt.base, string(code), err)
		}
	}
	if code, err := InviteFor("http://a.example/join#AAA", "https://c.example/v1"); err == nil || code != "" {
		t.Errorf("a link that cannot be used becomes the code %q, %v", string(code), err)
	}
}
