// Package certs is where the public listener's certificate comes from: an ACME authority ([ACME]) or files of the
// owner's ([Files]). It is no edge and no router: the listener takes [Source.Config], the plain port beside it
// [Source.Challenge], and [Source.Run] is what gets certificates and replaces them.
//
// No stranger causes work here. A handshake is answered from memory, for one name; asking an authority is for Run
// alone, which waits longer after every failure. A name that is not ours costs a comparison, makes no file and takes
// no memory.
package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Source is a certificate that is replaced while the listener serves. It is safe for concurrent use.
type Source struct {
	log *slog.Logger
	// fetch returns the newest certificate and when to ask again. Without one the one before stays; an error beside
	// one is what the owner should know.
	fetch     func(context.Context) (*tls.Certificate, time.Duration, error)
	answer    func(*tls.ClientHelloInfo) (*tls.Certificate, error) // instead of the certificate, where it knows one
	protocols []string                                             // of ALPN, beside those of HTTP
	challenge http.Handler

	current atomic.Pointer[tls.Certificate]
	first   chan struct{} // closed after the first fetch
	began   sync.Once

	mu    sync.Mutex
	fault error // of the last fetch
}

// State is what the owner is told.
type State struct {
	NotAfter time.Time // zero where there is no certificate yet
	Err      error     // why the last attempt to get or replace it went wrong
}

// Valid is why nobody can connect now, nil where the certificate is good.
func (s State) Valid(now time.Time) error {
	switch {
	case s.NotAfter.IsZero() && s.Err != nil:
		return s.Err
	case s.NotAfter.IsZero():
		return errNone
	case now.After(s.NotAfter):
		return errors.Join(errEnded, s.Err)
	}
	return nil
}

var (
	errNone  = errors.New("there is no certificate yet")
	errEnded = errors.New("the certificate has ended")
	errName  = errors.New("no certificate for this name")
)

// State says how the certificate is.
func (s *Source) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := State{Err: s.fault}
	if cert := s.current.Load(); cert != nil {
		state.NotAfter = cert.Leaf.NotAfter
	}
	return state
}

// Config is for the listener. Every handshake gets the certificate of that moment.
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
			return nil, errNone
		},
	}
}

// Challenge answers what an authority asks on port 80, below /.well-known/acme-challenge/; nil where none will.
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

// Await returns once the first attempt has ended, or ctx has.
func (s *Source) Await(ctx context.Context) {
	select {
	case <-s.first:
	case <-ctx.Done():
	}
}

// step makes one attempt and says when the next one is due.
func (s *Source) step(ctx context.Context) time.Duration {
	cert, wait, err := s.fetch(ctx)
	if ctx.Err() != nil {
		return wait
	}
	s.mu.Lock()
	known := s.fault != nil && err != nil && s.fault.Error() == err.Error()
	s.fault = err
	s.mu.Unlock()
	if err != nil && !known {
		s.log.Warn("certificate", "err", err, "next", wait)
	}
	if before := s.current.Load(); cert != nil && (before == nil || !before.Leaf.Equal(cert.Leaf)) {
		s.current.Store(cert)
		s.log.Info("certificate", "names", cert.Leaf.DNSNames, "until", cert.Leaf.NotAfter)
	}
	s.began.Do(func() { close(s.first) })
	return wait
}

func newSource(log *slog.Logger) *Source {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Source{log: log, first: make(chan struct{})}
}
