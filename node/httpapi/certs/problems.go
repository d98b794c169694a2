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

// problems passes calls to the authority on and remembers why a challenge failed there, which is what the owner has to
// know: autocert keeps it to itself. Calls of an attempt that has ended are refused, and how long the authority may have us
// wait is bounded.
type problems struct {
	next http.RoundTripper

	mu   sync.Mutex
	ctx  context.Context
	said map[string]string // by type of challenge
}

var errNoReason = errors.New("no reason is known")

const (
	maxProblem = 64 << 10
	maxKinds   = 8 // of challenges; two are tried
)

// begin says that calls are let through until ctx ends.
func (p *problems) begin(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ctx = ctx
}

// explain adds to the error of an attempt what the authority said.
func (p *problems) explain(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.said) == 0 {
		return err
	}
	var said []string
	for _, kind := range slices.Sorted(maps.Keys(p.said)) {
		said = append(said, kind+": "+p.said[kind])
	}
	return fmt.Errorf("the authority says: %s (%w)", strings.Join(said, "; "), err)
}

// forget drops what the authority said: the next attempt may fail for another reason.
func (p *problems) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = nil
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

// The longest that an authority may have us wait: after a refusal, when one question a day does no harm, and until it is
// asked again how far it is.
const (
	longestRefusal = 24 * time.Hour
	longestPause   = time.Minute
)

// boundWait keeps the Retry-After of an answer within bounds, and drops one that asks for no wait.
func boundWait(resp *http.Response) {
	text := resp.Header.Get("Retry-After")
	if text == "" {
		return
	}
	longest := longestPause
	if resp.StatusCode >= 400 {
		longest = longestRefusal
	}
	most := int(longest / time.Second)
	seconds, err := strconv.Atoi(text)
	if at, isTime := http.ParseTime(text); err != nil && isTime == nil {
		seconds = int(time.Until(at) / time.Second)
	}
	if seconds = min(seconds, most); seconds <= 0 {
		resp.Header.Del("Retry-After")
		return
	}
	resp.Header.Set("Retry-After", strconv.Itoa(seconds))
}

// note keeps the problem of each kind of challenge in an authorization (RFC 8555 section 7.1.4); one that went well
// ends them.
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
		p.said = nil
	}
	for _, c := range authorization.Challenges {
		if c.Error == nil {
			continue
		}
		if p.said == nil {
			p.said = make(map[string]string)
		}
		if len(p.said) < maxKinds {
			p.said[c.Type] = fmt.Sprintf("%.300s", c.Error.Detail)
		}
	}
}
