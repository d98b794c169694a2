package certs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// problems forwards calls to the authority and remembers why a challenge failed there, because autocert does not report
// that to the owner. It refuses calls of an attempt that has ended, and bounds how long the authority can make us wait.
type problems struct {
	next http.RoundTripper

	mu      sync.Mutex
	ctx     context.Context   // of the current attempt
	details map[string]string // by type of challenge
}

var errNoReason = errors.New("no reason is known")

const (
	maxProblem = 64 << 10 // bytes of a response that are searched for problems
	maxKinds   = 8        // of challenges; we try two kinds
)

func (p *problems) begin(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ctx = ctx
}

// explain adds to err what the authority reported about the challenges.
func (p *problems) explain(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.details) == 0 {
		return err
	}
	var reasons []string
	for _, kind := range slices.Sorted(maps.Keys(p.details)) {
		reasons = append(reasons, kind+": "+p.details[kind])
	}
	return fmt.Errorf("the authority reports: %s (%w)", strings.Join(reasons, "; "), err)
}

func (p *problems) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.details = nil
}

func (p *problems) RoundTrip(req *http.Request) (*http.Response, error) {
	p.mu.Lock()
	attempt := p.ctx
	p.mu.Unlock()
	if err := attempt.Err(); err != nil {
		return nil, err
	}
	resp, err := p.next.RoundTrip(req)
	if err == nil {
		boundWait(resp)
	}
	if err != nil || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		return resp, err
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
	p.note(head)
	return resp, nil
}

// Bounds of the Retry-After of an authority.
const (
	maxRefusalWait = 24 * time.Hour // after a refusal, because one request a day does no harm
	maxPollWait    = time.Minute    // between two requests for the state of an order
)

// boundWait bounds the Retry-After of a response. It removes a header that is invalid or does not ask for a wait.
func boundWait(resp *http.Response) {
	text := resp.Header.Get("Retry-After")
	if text == "" {
		return
	}
	maxWait := maxPollWait
	if resp.StatusCode >= 400 {
		maxWait = maxRefusalWait
	}
	seconds, err := strconv.Atoi(text)
	if t, timeErr := http.ParseTime(text); err != nil && timeErr == nil {
		seconds = int(time.Until(t) / time.Second)
	}
	if seconds = min(seconds, int(maxWait/time.Second)); seconds <= 0 {
		resp.Header.Del("Retry-After")
		return
	}
	resp.Header.Set("Retry-After", strconv.Itoa(seconds))
}

// note remembers the problem of each kind of challenge in an authorization (RFC 8555 section 7.1.4). A valid
// authorization clears the remembered problems.
func (p *problems) note(body []byte) {
	var authorization struct {
		Status     string
		Challenges []struct {
			Type  string
			Error *struct{ Detail string }
		}
	}
	if json.Unmarshal(body, &authorization) != nil || authorization.Challenges == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if authorization.Status == "valid" {
		p.details = nil
	}
	for _, c := range authorization.Challenges {
		if c.Error == nil {
			continue
		}
		if p.details == nil {
			p.details = make(map[string]string)
		}
		if len(p.details) < maxKinds {
			p.details[c.Type] = fmt.Sprintf("%.300s", c.Error.Detail)
		}
	}
}
