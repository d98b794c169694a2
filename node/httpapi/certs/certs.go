// Package certs gets the certificate of the public listener: from an ACME authority ([ACME]) or from files of the owner
// ([Files]). The listener uses [Source.Config], the plain HTTP port uses [Source.Challenge], and [Source.Run] gets
// certificates and replaces them.
//
// Strangers cannot cause work here. A handshake is answered from memory. Only Run makes requests to an authority, and
// it waits longer after each failure. With [ACME], a name that is not ours costs one comparison, makes no file and uses
// no memory. With [Files], every handshake gets the certificate, whatever its name.
package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Source is a certificate that is replaced while the listener serves. It is safe for concurrent use.
type Source struct {
	log *slog.Logger
	// fetch returns the newest certificate and when to fetch again. If it returns no certificate, the previous one
	// stays in use. It may return a certificate and also an error, which the owner then sees.
	fetch     func(context.Context) (*tls.Certificate, time.Duration, error)
	answer    func(*tls.ClientHelloInfo) (*tls.Certificate, error) // returns a certificate instead of current, or nil
	protocols []string                                             // more ALPN protocols, besides those of HTTP
	challenge http.Handler

	current   atomic.Pointer[tls.Certificate]
	first     chan struct{} // closed after the first attempt
	closeOnce sync.Once     // closes first

	mu    sync.Mutex
	fault error // the error of the last fetch
}

// State describes the certificate to the owner.
type State struct {
	NotAfter time.Time // zero without a certificate
	Err      error     // why the last attempt failed
}

// Check returns an error that explains why clients cannot connect now, or nil if there is a certificate that has not
// expired.
func (s State) Check(now time.Time) error {
	switch {
	case s.NotAfter.IsZero() && s.Err != nil:
		return s.Err
	case s.NotAfter.IsZero():
		return errNoCertificate
	case now.After(s.NotAfter):
		return errors.Join(errExpired, s.Err)
	}
	return nil
}

var (
	errNoCertificate = errors.New("there is no certificate yet")
	errExpired       = errors.New("the certificate has expired")
	errWrongName     = errors.New("no certificate for this name")
)

// State returns the state of the certificate.
func (s *Source) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := State{Err: s.fault}
	if cert := s.current.Load(); cert != nil {
		state.NotAfter = cert.Leaf.NotAfter
	}
	return state
}

// Config returns the TLS configuration of the listener. A handshake gets the current certificate. A source of [ACME]
// also answers challenges, and refuses handshakes for other names.
func (s *Source) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: append([]string{"h2", "http/1.1"}, s.protocols...),
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if s.answer != nil {
				if cert, err := s.answer(hello); cert != nil || err != nil {
					return cert, err
				}
			}
			if cert := s.current.Load(); cert != nil {
				return cert, nil
			}
			return nil, errNoCertificate
		},
	}
}

// Challenge returns the handler for an authority's requests to port 80 below /.well-known/acme-challenge/, or nil.
func (s *Source) Challenge() http.Handler { return s.challenge }

// Run gets the certificate and replaces it in time, until ctx ends.
func (s *Source) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(s.step(ctx))
		}
	}
}

// Await returns after the first attempt, or when ctx ends.
func (s *Source) Await(ctx context.Context) {
	select {
	case <-s.first:
	case <-ctx.Done():
	}
}

// step makes one attempt and returns the wait before the next.
func (s *Source) step(ctx context.Context) time.Duration {
	cert, wait, err := s.fetch(ctx)
	if ctx.Err() != nil {
		return wait
	}
	s.mu.Lock()
	isRepeated := s.fault != nil && err != nil && s.fault.Error() == err.Error()
	s.fault = err
	s.mu.Unlock()
	if err != nil && !isRepeated {
		s.log.Warn("cannot get the certificate", "err", err, "next", wait)
	}
	if previous := s.current.Load(); cert != nil && (previous == nil || !slices.EqualFunc(previous.Certificate, cert.Certificate, bytes.Equal)) {
		s.current.Store(cert)
		s.log.Info("new certificate in use", "names", cert.Leaf.DNSNames, "until", cert.Leaf.NotAfter)
	}
	s.closeOnce.Do(func() { close(s.first) })
	return wait
}

func newSource(log *slog.Logger) *Source {
	return &Source{log: cmp.Or(log, slog.New(slog.DiscardHandler)), first: make(chan struct{})}
}
