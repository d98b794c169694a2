package certs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fixedResponse answers every call with one document.
type fixedResponse struct{ kind, body string }

func (s fixedResponse) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {s.kind}}, Body: io.NopCloser(strings.NewReader(s.body))}, nil
}

// TestProblems: the caller gets the authority's response byte for byte, and its reasons about challenges are
// remembered, within bounds.
func TestProblems(t *testing.T) {
	var many strings.Builder
	for i := range 100 {
		many.WriteString(`{"type":"kind-` + strings.Repeat("x", i) + `","error":{"detail":"` + strings.Repeat("long ", 1000) + `"}},`)
	}
	for name, tt := range map[string]struct {
		answers []fixedResponse
		want    string // the explanation before the cause, "" for none
	}{
		"refused": {[]fixedResponse{{"application/json", `{"status":"invalid","challenges":[{"type":"http-01","error":{"detail":"refused"}},{"type":"dns-01"}]}`}}, "the authority reports: http-01: refused ("},
		"two": {[]fixedResponse{
			{"application/json", `{"status":"invalid","challenges":[{"type":"tls-alpn-01","error":{"detail":"a"}}]}`},
			{"application/json; charset=utf-8", `{"status":"invalid","challenges":[{"type":"http-01","error":{"detail":"b"}}]}`},
		}, "the authority reports: http-01: b; tls-alpn-01: a ("},
		"then valid": {[]fixedResponse{
			{"application/json", `{"status":"invalid","challenges":[{"type":"http-01","error":{"detail":"b"}}]}`},
			{"application/json", `{"status":"valid","challenges":[{"type":"http-01"}]}`},
		}, ""},
		"no authorization": {[]fixedResponse{{"application/json", `{"status":"invalid","error":{"detail":"x"}}`}}, ""},
		"rubbish":          {[]fixedResponse{{"application/json", "{"}, {"text/html", "<html>"}, {"application/json", ""}}, ""},
		"large":            {[]fixedResponse{{"application/json", `{"challenges":[` + strings.TrimSuffix(many.String(), ",") + `]}`}}, ""},
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
			if p.forget(); p.explain(cause) != cause {
				t.Error("it does not forget")
			}
		})
	}
}

// TestProblemsEnd: after the end of an attempt no calls are made.
func TestProblemsEnd(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	p := &problems{next: fixedResponse{"text/plain", ""}}
	p.begin(ctx)
	stop()
	if _, err := p.RoundTrip(&http.Request{}); !errors.Is(err, context.Canceled) {
		t.Errorf("RoundTrip() = %v", err)
	}
}

// TestWaitsAreBounded: the Retry-After of the authority is bounded before anything reads it.
func TestWaitsAreBounded(t *testing.T) {
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for _, tt := range []struct {
		status          int
		after           string
		atLeast, atMost time.Duration // both zero for no Retry-After
	}{
		{429, "3600", time.Hour, time.Hour},
		{503, "86400", 24 * time.Hour, 24 * time.Hour},
		{429, "86401", 24 * time.Hour, 24 * time.Hour},
		{429, "315360000", 24 * time.Hour, 24 * time.Hour},
		{429, "9223372036854775807", 24 * time.Hour, 24 * time.Hour},
		{429, "99999999999999999999999", 24 * time.Hour, 24 * time.Hour},
		{429, in(time.Hour), time.Hour - 5*time.Second, time.Hour},
		{429, in(1000 * time.Hour), 24 * time.Hour, 24 * time.Hour},
		{429, in(-time.Hour), 0, 0},
		{429, "-5", 0, 0},
		{429, "soon", 0, 0},
		{429, "", 0, 0},
		{200, "5", 5 * time.Second, 5 * time.Second},
		{200, "3600", time.Minute, time.Minute},
		{200, "-5", 0, 0}, // a client that polls would not pause
	} {
		p := &problems{next: retryResponse{tt.status, tt.after, nil}}
		p.begin(t.Context())
		resp, err := p.RoundTrip(&http.Request{})
		if err != nil {
			t.Fatal(err)
		}
		seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		got := time.Duration(seconds) * time.Second
		if len(resp.Header["Retry-After"]) == 0 != (tt.atMost == 0) || err != nil && tt.atMost > 0 || got < tt.atLeast || got > tt.atMost {
			t.Errorf("%d asks for %q: got %q", tt.status, tt.after, resp.Header["Retry-After"])
		}
	}
}

// retryResponse answers every call with one status and Retry-After.
type retryResponse struct {
	status int
	after  string
	calls  *atomic.Int64
}

func (s retryResponse) RoundTrip(*http.Request) (*http.Response, error) {
	if s.calls != nil {
		s.calls.Add(1)
	}
	resp := &http.Response{StatusCode: s.status, Header: http.Header{"Content-Type": {"application/problem+json"}},
		Body: io.NopCloser(strings.NewReader(`{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many"}`))}
	if s.after != "" {
		resp.Header.Set("Retry-After", s.after)
	}
	return resp, nil
}

// TestRefusedForYears: an authority that refuses for ten years gets another call after a day, and not before.
func TestRefusedForYears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &atomic.Int64{}
		s := ACME(ACMEConfig{Host: host, Authority: "https://127.0.0.1/dir", Dir: t.TempDir(), Transport: retryResponse{429, "315360000", calls}})
		go s.Run(t.Context())
		time.Sleep(20 * time.Hour)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls in 20 hours, want 1", n)
		}
		time.Sleep(5 * time.Hour)
		if n := calls.Load(); n != 2 {
			t.Errorf("%d calls in 25 hours, want 2", n)
		}
	})
}
