package moltspeak

import "testing"

// TestReachableURL: an endpoint URL on loopback is revealed only to callers on this machine.
func TestReachableURL(t *testing.T) {
	const here, there = "http://127.0.0.1:3141/moltspeak/v0.1", "https://mesh.example.org/moltspeak/v0.1"
	for _, tc := range []struct{ own, where, want string }{
		{here, "https://far.example/moltspeak/v0.1/message", ""},
		{here, "https://192.0.2.1/message", ""},
		{here, "http://127.0.0.2:9/message", here},
		{here, "http://[::1]:9/message", here},
		{here, "http://localhost:9/message", here},
		{here, "", ""},
		{there, "", there},
		{there, "https://far.example/message", there},
		{there, "http://127.0.0.1:9/message", there},
		{"", "https://far.example/message", ""},
	} {
		if got := ownURL(tc.own).reachableFrom(tc.where); got != tc.want {
			t.Errorf("%q to %q: %q, want %q", tc.own, tc.where, got, tc.want)
		}
		if ext := ownURL(tc.own).ext(tc.where); (ext.Len() == 1) != (tc.want != "") {
			t.Errorf("%q to %q: %s", tc.own, tc.where, ext.JSON())
		}
	}
}
