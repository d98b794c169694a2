package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// local returns a client of the local profile that is closed at the end of the test.
func local(t testing.TB, cfg HTTPConfig) *HTTP {
	t.Helper()
	cfg.Local = true
	h := NewHTTP(cfg)
	t.Cleanup(h.Close)
	return h
}

func serve(t testing.TB, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv
}

func getRequest(t testing.TB, target string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestDoFollowsNoRedirect(t *testing.T) {
	var followed atomic.Bool
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/there" {
			followed.Store(true)
		}
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
		http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
	})
	h := local(t, HTTPConfig{})
	resp, err := h.Do(t.Context(), Loopback, getRequest(t, srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusTemporaryRedirect || followed.Load() {
		t.Errorf("status %d, followed %v; want 307, false", resp.StatusCode, followed.Load())
	}
}

func TestDoSendsNothingOfItsOwn(t *testing.T) {
	var got []http.Header
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Clone())
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
	})
	h := local(t, HTTPConfig{Version: "1.2.3"})
	for i, l := range h.pools {
		if l.transport.Proxy != nil { // the default proxy would never apply to the loopback addresses of a test
			t.Errorf("pool %d has a proxy", i)
		}
	}
	for _, reach := range []Reach{Loopback, Owner, Owner} {
		resp, err := h.Do(t.Context(), reach, getRequest(t, srv.URL))
		if err != nil {
			t.Fatalf("Do(%v) = %v", reach, err)
		}
		resp.Body.Close()
	}
	for _, header := range got {
		if len(header) != 1 || header.Get("User-Agent") != "agentmesh/1.2.3" {
			t.Errorf("sent headers %v, want the User-Agent alone", header)
		}
	}
}

func TestReadAllBounds(t *testing.T) {
	tests := []struct {
		name    string
		handler http.HandlerFunc
		want    error
	}{
		{"exactly", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, strings.Repeat("x", 1000)) }, nil},
		{"declared", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1001")
			io.WriteString(w, strings.Repeat("x", 1001))
		}, ErrAnswerTooLarge},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				io.WriteString(w, strings.Repeat("x", 4096))
			}
		}, ErrAnswerTooLarge},
		{"gzip stays as it came", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "" {
				t.Error("asked for a compressed answer")
			}
			w.Header().Set("Content-Encoding", "gzip")
			w.Write([]byte{0x1f, 0x8b, 8, 0}) // the start of a zip bomb, which must not be inflated
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := serve(t, tt.handler)
			resp, err := local(t, HTTPConfig{}).Do(t.Context(), Loopback, getRequest(t, srv.URL))
			if err != nil {
				t.Fatal(err)
			}
			data, err := ReadAll(resp, 1000)
			if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("ReadAll() = %v, want %v", err, tt.want)
			}
			if tt.name == "gzip stays as it came" && len(data) != 4 {
				t.Errorf("read %d bytes, want the 4 of the wire", len(data))
			}
		})
	}
}

func TestDoBoundsTheWholeAnswer(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil { // a byte now and then must not keep the call alive
			io.WriteString(w, "x")
			http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	for _, reach := range []Reach{Loopback, Owner} {
		var resp *http.Response
		for bound := 100 * time.Millisecond; ; bound *= 2 { // a busy machine may need longer to begin an answer
			var err error
			if resp, err = local(t, HTTPConfig{Answer: bound}).Do(t.Context(), reach, getRequest(t, srv.URL)); err == nil {
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) || bound > time.Minute {
				t.Fatal(err)
			}
		}
		if _, err := ReadAll(resp, 1<<20); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ReadAll() with %v = %v, want the deadline", reach, err)
		}
	}
}

// TestDoDeadlines checks that a caller's deadline shortens a call to a peer but never lengthens it, and that it is the
// limit for the owner's URLs.
func TestDoDeadlines(t *testing.T) {
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/never" {
			<-r.Context().Done()
			return
		}
		select {
		case <-r.Context().Done():
		case <-time.After(200 * time.Millisecond):
		}
	})
	h := local(t, HTTPConfig{Answer: 50 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := h.Do(ctx, Loopback, getRequest(t, srv.URL+"/never")); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("Do(Loopback) = %v, want the deadline of the answer", err)
	}
	resp, err := h.Do(ctx, Owner, getRequest(t, srv.URL))
	if err != nil {
		t.Fatalf("Do(Owner) = %v, want the caller's deadline to count", err)
	}
	resp.Body.Close()
}

func TestDoFourCallsPerHost(t *testing.T) {
	var now, peak atomic.Int64
	arrived, release := make(chan struct{}, 16), make(chan struct{})
	srv := serve(t, func(http.ResponseWriter, *http.Request) {
		if n := now.Add(1); n > peak.Load() {
			peak.Store(n)
		}
		arrived <- struct{}{}
		<-release
		now.Add(-1)
	})
	h := local(t, HTTPConfig{})
	var calls sync.WaitGroup
	for range 12 {
		calls.Go(func() {
			resp, err := h.Do(t.Context(), Loopback, getRequest(t, srv.URL))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		})
	}
	for range perHost {
		<-arrived
	}
	// A call to another host does not wait.
	other := serve(t, func(http.ResponseWriter, *http.Request) {})
	resp, err := h.Do(t.Context(), Loopback, getRequest(t, other.URL))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	close(release)
	calls.Wait()
	if peak.Load() != perHost {
		t.Errorf("%d calls at once, want %d", peak.Load(), perHost)
	}
	if n := len(h.limit.hosts); n != 0 {
		t.Errorf("%d hosts remembered after the last call, want 0", n)
	}
}

// TestSlotsOfOneHost: other spellings of a host share its slots (AM-79).
func TestSlotsOfOneHost(t *testing.T) {
	h := NewHTTP(HTTPConfig{})
	defer h.Close()
	for _, url := range []string{"https://victim.example/", "https://Victim.example/", "https://victim.example./", "https://VICTIM.example:8443/"} {
		if _, err := h.wait(t.Context(), Public, getRequest(t, url)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(h.limit.hosts); n != 1 {
		t.Errorf("the calls count for %d hosts, want 1", n)
	}
}

func TestDoGivesUpWaitingForASlot(t *testing.T) {
	release := make(chan struct{})
	srv := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	h := local(t, HTTPConfig{Answer: 50 * time.Millisecond})
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			_, err := h.Do(t.Context(), Loopback, getRequest(t, srv.URL))
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Do() = %v, want a deadline", err)
			}
		})
	}
	calls.Wait()
}

// TestDoSharesNoConnectionBetweenReaches checks that a call for a card's URL does not use a connection that was made
// for the owner.
func TestDoSharesNoConnectionBetweenReaches(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	h := NewHTTP(HTTPConfig{RootCAs: pool(srv), Resolver: nameServer(t, func(_ int64, v6 bool) netip.Addr {
		if v6 {
			return netip.Addr{}
		}
		return netip.MustParseAddr("127.0.0.1")
	})})
	defer h.Close()
	target := strings.Replace(srv.URL, "127.0.0.1", "example.com", 1) // the name in the certificate of the test server
	resp, err := h.Do(t.Context(), Owner, getRequest(t, target))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	_, err = h.Do(t.Context(), Public, getRequest(t, target))
	if _, guarded := errors.AsType[*GuardError](err); !guarded {
		t.Errorf("Do(Public) after Do(Owner) = %v, want a GuardError", err)
	}
}

func TestDoWantsTLS12(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	h := local(t, HTTPConfig{RootCAs: pool(srv)})
	if _, err := h.Do(t.Context(), Loopback, getRequest(t, srv.URL)); err == nil {
		t.Error("Do() over TLS 1.1 succeeded")
	}
	srv12 := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv12.Close()
	h12 := local(t, HTTPConfig{RootCAs: pool(srv12)})
	resp, err := h12.Do(t.Context(), Loopback, getRequest(t, srv12.URL))
	if err != nil {
		t.Fatalf("Do() over TLS 1.3 = %v", err)
	}
	resp.Body.Close()
}

func pool(srv *httptest.Server) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(srv.Certificate())
	return p
}
