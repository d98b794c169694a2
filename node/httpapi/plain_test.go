package httpapi

import (
	"io"
	"strings"
	"testing"
)

// TestRefusedBeforeAnyHandler: net/http itself refuses some requests with plain text, as docs/rough-edges.md describes,
// and the text contains nothing of the request. If this test fails, there may be a way to answer them with the body of
// AM-27.
func TestRefusedBeforeAnyHandler(t *testing.T) {
	l := start(t, New(Config{}))
	for request, want := range map[string]string{
		"STRANGER\r\n\r\n":                          "400",
		"GET / HTTP/1.1\r\n\r\n":                    "400",
		"GET / HTTP/1.1\r\nHost: stran ger\r\n\r\n": "400",
		"GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("STRANGER", 4<<10) + "\r\n\r\n": "431",
		"GET / HTTP/9.9\r\nHost: x\r\n\r\n":                                                 "505",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: STRANGER\r\n\r\n":                 "501",
	} {
		conn, err := l.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go io.WriteString(conn, request) // net/http stops reading when it has seen enough
		answer, _ := io.ReadAll(conn)
		conn.Close()
		if got := string(answer); !strings.HasPrefix(got, "HTTP/1.1 "+want+" ") || !strings.Contains(got, "text/plain") || strings.Contains(got, "STRANGER") {
			t.Errorf("%.40q is answered with %q, want %s in plain text", request, got, want)
		}
	}
}
