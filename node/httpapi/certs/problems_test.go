package certs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// said answers every call with one document.
type said struct{ kind, body string }

func (s said) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {s.kind}}, Body: io.NopCloser(strings.NewReader(s.body))}, nil
}

// The caller reads what the authority sent, byte for byte, and what it said about challenges is remembered, bounded.
func TestProblems(t *testing.T) {
	var many strings.Builder
	for i := range 100 {
		many.WriteString(`{"type":"kind-` + strings.Repeat("x", i) + `","error":{"detail":"` + strings.Repeat("long ", 1000) + `"}},`)
	}
	for name, tt := range map[string]struct {
		answers []said
		want    string // the whole explanation before the cause, "" for none
	}{
		"refused": {[]said{{"application/json", `{"status":"invalid","challenges":[{"type":"http-01","error":{"detail":"refused"}},{"type":"dns-01"}]}`}}, "the authority says: http-01: refused ("},
		"two": {[]said{
			{"application/json", `{"status":"invalid","challenges":[{"type":"tls-alpn-01","error":{"detail":"a"}}]}`},
			{"application/json; charset=utf-8", `{"status":"invalid","challenges":[{"type":"http-01","error":{"detail":"b"}}]}`},
		}, "the authority says: http-01: b; tls-alpn-01: a ("},
		"then valid": {[]said{
			{"application/json", `{"status":"invalid","challenges":[{"type":"http-01","error":{"detail":"b"}}]}`},
			{"application/json", `{"status":"valid","challenges":[{"type":"http-01"}]}`},
		}, ""},
		"no authorization": {[]said{{"application/json", `{"status":"invalid","error":{"detail":"x"}}`}}, ""},
		"rubbish":          {[]said{{"application/json", "{"}, {"text/html", "<html>"}, {"application/json", ""}}, ""},
		"large":            {[]said{{"application/json", `{"challenges":[` + strings.TrimSuffix(many.String(), ",") + `]}`}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &problems{}
			p.begin(t.Context())
			for _, answer := range tt.answers {
				p.next = answer
				resp, err := p.RoundTrip(&http.Request{})
				if err != nil {
					t.Fatal(err)
				}
				if body, err := io.ReadAll(resp.Body); err != nil || string(body) != answer.body {
					t.Errorf("the caller reads %d bytes of %d, %v", len(body), len(answer.body), err)
				}
			}
			cause := errors.New("cause")
			got := p.explain(cause)
			before, _, _ := strings.Cut(got.Error(), "cause")
			if before != tt.want || !errors.Is(got, cause) {
				t.Errorf("explain() = %q, want %q", got, tt.want)
			}
			if p.forget(); p.explain(cause).Error() != "cause" {
				t.Error("it does not forget")
			}
		})
	}
}

// After the end nothing is asked any more.
func TestProblemsEnd(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	p := &problems{next: said{"text/plain", ""}}
	p.begin(ctx)
	stop()
	if _, err := p.RoundTrip(&http.Request{}); !errors.Is(err, context.Canceled) {
		t.Errorf("RoundTrip() = %v", err)
	}
}
