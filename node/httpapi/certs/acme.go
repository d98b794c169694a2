package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
)

// ACMEConfig configures the ACME authority and the certificate. [ACME] accepts the terms of the authority, so the
// caller needs the owner's consent.
type ACMEConfig struct {
	Host      string // the one name, in ASCII
	Authority string // URL of the ACME directory
	Dir       string // holds the account key and the certificate; created with mode 0700
	Plain     bool   // port 80 of Host leads to [Source.Challenge]
	// Transport makes the calls to the authority. It must bound the time of each call.
	Transport http.RoundTripper
	Logger    *slog.Logger // nil discards the log
	UserAgent string
}

// maxCheckGap bounds the time between two checks for a certificate that autocert has renewed.
const maxCheckGap = time.Minute

// retryPauses are the pauses after the first failure, the second, and so on. Authorities such as Let's Encrypt refuse a
// client that fails more than five times an hour.
var retryPauses = []time.Duration{15 * time.Second, 2 * time.Minute, 10 * time.Minute, 20 * time.Minute, time.Hour}

// ACME returns a source that requests certificates from an ACME authority. It uses the challenge TLS-ALPN-01 and, with
// [ACMEConfig.Plain], HTTP-01. The certificate has a P-256 key. It is renewed when a third of its lifetime is left, but
// not earlier than thirty days before its end.
func ACME(cfg ACMEConfig) *Source {
	s := newSource(cfg.Logger)
	a := &authority{cfg: cfg, log: s.log, problems: &problems{next: cfg.Transport}}
	a.replaceManager()
	s.fetch = a.fetch
	s.answer = a.answer
	s.protocols = []string{acme.ALPNProto}
	if cfg.Plain {
		s.challenge = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a.manager.Load().http.ServeHTTP(w, r)
		})
	}
	return s
}

// authority is our client of one ACME authority. Only [Source.Run] calls fetch.
type authority struct {
	cfg      ACMEConfig
	log      *slog.Logger
	problems *problems
	manager  atomic.Pointer[manager]
	failures int
}

type manager struct {
	*autocert.Manager
	http http.Handler
}

// replaceManager makes a new manager. A manager that has failed returns its last error for another minute without an
// attempt, so each attempt after a failure gets a new manager.
func (a *authority) replaceManager() {
	m := &manager{Manager: &autocert.Manager{
		Prompt: func(terms string) bool {
			a.log.Info("terms of the certificate authority accepted", "authority", a.cfg.Authority, "terms", terms)
			return true
		},
		Cache:      cache{autocert.DirCache(a.cfg.Dir), a.cfg},
		HostPolicy: a.policy,
		Client: &acme.Client{
			DirectoryURL: a.cfg.Authority, UserAgent: a.cfg.UserAgent,
			HTTPClient: &http.Client{Transport: a.problems, CheckRedirect: noRedirect},
		},
	}}
	if a.cfg.Plain {
		m.http = m.HTTPHandler(http.NotFoundHandler())
	}
	a.manager.Store(m)
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// policy accepts challenge requests for our host, with or without a port.
func (a *authority) policy(_ context.Context, host string) error {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if !a.isOurs(host) {
		return errWrongName
	}
	return nil
}

func (a *authority) isOurs(name string) bool {
	return strings.EqualFold(strings.TrimSuffix(name, "."), a.cfg.Host)
}

// answer refuses names other than ours, and answers the challenge TLS-ALPN-01. For another handshake with our name, it
// returns nil, so that the handshake gets the current certificate.
func (a *authority) answer(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if !a.isOurs(hello.ServerName) {
		return nil, errWrongName
	}
	if slices.Equal(hello.SupportedProtos, []string{acme.ALPNProto}) {
		return a.manager.Load().GetCertificate(hello)
	}
	return nil, nil
}

// fetch returns autocert's certificate, and requests one if autocert has none. If ctx ends, the attempt continues in
// the background until its next call to the authority, which a.problems refuses.
func (a *authority) fetch(ctx context.Context) (*tls.Certificate, time.Duration, error) {
	a.problems.begin(ctx)
	type result struct {
		cert *tls.Certificate
		err  error
	}
	done := make(chan result, 1)
	go func() {
		cert, err := a.manager.Load().GetCertificate(&tls.ClientHelloInfo{
			ServerName: a.cfg.Host, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}, // for a P-256 key
		})
		done <- result{cert, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	if r.err != nil {
		wait := retryPauses[min(a.failures, len(retryPauses)-1)]
		if retry, limited := acme.RateLimit(r.err); limited {
			wait = max(wait, retry)
		}
		a.failures++
		a.replaceManager()
		err := fmt.Errorf("no certificate for %s: %w", a.cfg.Host, a.problems.explain(r.err))
		a.problems.forget()
		return nil, wait, err
	}
	a.failures = 0
	lifetime := r.cert.Leaf.NotAfter.Sub(r.cert.Leaf.NotBefore)
	return r.cert, min(maxCheckGap, lifetime/20), a.checkRenewal(r.cert, lifetime)
}

// checkRenewal returns an error if the certificate is long overdue for renewal. Autocert keeps trying but reports
// nothing.
func (a *authority) checkRenewal(cert *tls.Certificate, lifetime time.Duration) error {
	if remaining := time.Until(cert.Leaf.NotAfter); remaining > min(lifetime/4, 21*24*time.Hour) {
		return nil
	}
	return fmt.Errorf("the certificate for %s ends %s and could not be renewed: %w",
		a.cfg.Host, cert.Leaf.NotAfter.UTC().Format(time.RFC3339), a.problems.explain(errNoReason))
}

// cache stores only the account key and the certificate, so no name that a stranger requests becomes a file name.
// Responses to challenges stay in memory, where autocert looks first.
type cache struct {
	autocert.DirCache
	cfg ACMEConfig
}

const accountKey = "acme_account+key" // autocert's name for the account key

func (c cache) keeps(name string) bool { return name == accountKey || name == c.cfg.Host }

func (c cache) Get(ctx context.Context, name string) ([]byte, error) {
	if !c.keeps(name) {
		return nil, autocert.ErrCacheMiss
	}
	file := filepath.Join(c.cfg.Dir, name)
	if info, err := os.Lstat(file); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("other users can read %s; run chmod 600 %s", file, file)
	}
	return c.DirCache.Get(ctx, name)
}

func (c cache) Put(ctx context.Context, name string, data []byte) error {
	if !c.keeps(name) {
		return nil
	}
	return c.DirCache.Put(ctx, name, data)
}

func (c cache) Delete(ctx context.Context, name string) error {
	if !c.keeps(name) {
		return nil
	}
	return c.DirCache.Delete(ctx, name)
}
