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

// ACMEConfig says of whom a certificate is asked, and for what. Asking accepts the terms of the authority: the caller
// has the owner's word for it.
type ACMEConfig struct {
	Host      string // the one name, in ASCII
	Authority string // URL of the ACME directory
	Contact   string // mail address for the authority; "" gives none
	Dir       string // keeps account key and certificate, made with mode 0700
	Plain     bool   // port 80 of Host leads to [Source.Challenge]
	// Transport makes the calls to the authority and bounds each of them.
	Transport http.RoundTripper
	Logger    *slog.Logger // nil discards
	UserAgent string
}

// renewedEvery is how often it is looked whether autocert has renewed a certificate, at least.
const renewedEvery = time.Minute

// patience is how long to wait after a failure, and after the next ones: an authority such as Let's Encrypt refuses
// who fails more than five times an hour.
var patience = []time.Duration{15 * time.Second, 2 * time.Minute, 10 * time.Minute, 20 * time.Minute, time.Hour}

// ACME is a source that asks an ACME authority, by the challenges TLS-ALPN-01 and, where [ACMEConfig.Plain] says so,
// HTTP-01. The certificate has a P-256 key and is renewed when a third of its time is left, at most thirty days.
func ACME(cfg ACMEConfig) *Source {
	s := newSource(cfg.Logger)
	a := &authority{cfg: cfg, log: s.log, problems: &problems{next: cfg.Transport}}
	a.begin()
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

// authority gets certificates from one. Only [Source.Run] calls fetch.
type authority struct {
	cfg      ACMEConfig
	log      *slog.Logger
	problems *problems
	manager  atomic.Pointer[manager]
	failures int
}

// manager is autocert's, with its answers to HTTP-01.
type manager struct {
	*autocert.Manager
	http http.Handler
}

// begin makes a manager. One that has failed gives its last error for a minute more, without an attempt, so every
// attempt has its own.
func (a *authority) begin() {
	m := &manager{Manager: &autocert.Manager{
		Prompt: func(terms string) bool {
			a.log.Info("terms of the certificate authority accepted", "authority", a.cfg.Authority, "terms", terms)
			return true
		},
		Cache:      cache{autocert.DirCache(a.cfg.Dir), a.cfg},
		HostPolicy: a.policy,
		Email:      a.cfg.Contact,
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

// policy lets a request for a challenge name our host, with or without a port.
func (a *authority) policy(_ context.Context, host string) error {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if !a.ours(host) {
		return errName
	}
	return nil
}

func (a *authority) ours(name string) bool {
	return strings.EqualFold(strings.TrimSuffix(name, "."), a.cfg.Host)
}

// answer refuses names that are not ours, and answers the challenge TLS-ALPN-01.
func (a *authority) answer(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if !a.ours(hello.ServerName) {
		return nil, errName
	}
	if slices.Equal(hello.SupportedProtos, []string{acme.ALPNProto}) {
		return a.manager.Load().GetCertificate(hello)
	}
	return nil, nil
}

// fetch returns the certificate that autocert has, after it was got where there is none. An attempt that ctx ends
// goes on without us until its next call to the authority, which the problems refuse.
func (a *authority) fetch(ctx context.Context) (*tls.Certificate, time.Duration, error) {
	a.problems.begin(ctx)
	type result struct {
		cert *tls.Certificate
		err  error
	}
	done := make(chan result, 1)
	go func() {
		cert, err := a.manager.Load().GetCertificate(&tls.ClientHelloInfo{
			ServerName: a.cfg.Host, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
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
		wait := patience[min(a.failures, len(patience)-1)]
		if told, limited := acme.RateLimit(r.err); limited {
			wait = max(wait, told)
		}
		a.failures++
		a.begin()
		err := fmt.Errorf("no certificate for %s: %w", a.cfg.Host, a.problems.explain(r.err))
		a.problems.forget()
		return nil, wait, err
	}
	a.failures = 0
	whole := r.cert.Leaf.NotAfter.Sub(r.cert.Leaf.NotBefore)
	return r.cert, min(renewedEvery, whole/20), a.late(r.cert, whole)
}

// late is the fault of a certificate that should have been renewed long ago: autocert tries on and says nothing.
func (a *authority) late(cert *tls.Certificate, whole time.Duration) error {
	if left := time.Until(cert.Leaf.NotAfter); left > min(whole/4, 21*24*time.Hour) {
		return nil
	}
	return fmt.Errorf("the certificate for %s ends %s and could not be renewed: %w",
		a.cfg.Host, cert.Leaf.NotAfter.UTC().Format(time.RFC3339), a.problems.explain(errNoReason))
}

// cache keeps what is worth keeping: the account key and the certificate. Answers to challenges stay in memory, where
// autocert looks first, so that no name which a stranger asks for becomes the name of a file.
type cache struct {
	autocert.DirCache
	cfg ACMEConfig
}

const accountKey = "acme_account+key" // autocert's name for it

func (c cache) keeps(name string) bool { return name == accountKey || name == c.cfg.Host }

func (c cache) Get(ctx context.Context, name string) ([]byte, error) {
	if !c.keeps(name) {
		return nil, autocert.ErrCacheMiss
	}
	file := filepath.Join(c.cfg.Dir, name)
	if info, err := os.Lstat(file); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s may be read by others: chmod 600 %s", file, file)
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
