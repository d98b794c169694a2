package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"

	"github.com/agentmesh/agentmesh/node/wire"
)

// script is the response that a control server gives to every request: one that the server under test gave before.
type script struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
	// Commit is the name of a bbolt file. Before the control responds to a POST, it commits the body to this file, under
	// the key in the header keyHeader. If Commit is empty, the control stores nothing.
	Commit string `json:"commit,omitempty"`
}

// keyHeader is the header with the key of a body, so that the control need not parse the body.
const keyHeader = "Meshbench-Key"

func newScript(a answer) script {
	h := a.Header.Clone()
	h.Del("Date") // net/http sets the date
	return script{Status: a.Status, Header: h, Body: append([]byte(nil), a.Body...)}
}

// controlCmd is a plain net/http server in its own process. It reads its script from standard input and prints the URL
// on which it listens. It exits when its parent exits, because that ends standard input.
type controlCmd struct{}

func (controlCmd) Run(ctx context.Context, s streams) error {
	var sc script
	if err := json.NewDecoder(s.in).Decode(&sc); err != nil {
		return fmt.Errorf("read script: %w", err)
	}
	h, stop, err := sc.handler()
	if err != nil {
		return err
	}
	return errors.Join(serveControl(ctx, s, h), stop())
}

// serveControl serves h on a free loopback port until ctx or the standard input ends.
func serveControl(ctx context.Context, s streams, h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, s.in)
		cancel()
	}()
	shutdownErr := make(chan error, 1)
	unhook := context.AfterFunc(ctx, func() { shutdownErr <- srv.Shutdown(context.WithoutCancel(ctx)) })
	fmt.Fprintf(s.out, "{\"url\":\"http://%s\",\"pid\":%d}\n", l.Addr(), os.Getpid())
	if err := srv.Serve(l); unhook() { // the listener failed
		return err
	}
	return <-shutdownErr
}

// handler returns the handler of the control, and a function that closes its file.
func (sc script) handler() (h http.Handler, stop func() error, err error) {
	commit := func(*http.Request, []byte) error { return nil }
	stop = func() error { return nil }
	if sc.Commit != "" {
		g, err := newBoltWriter(sc.Commit)
		if err != nil {
			return nil, nil, fmt.Errorf("open control file: %w", err)
		}
		commit = func(r *http.Request, body []byte) error {
			return g.write(put{bucketRows, []byte(r.Header.Get(keyHeader)), body})
		}
		stop = g.stop
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.MaxMessage))
			if err == nil {
				err = commit(r, body)
			}
			if err != nil {
				http.Error(w, "not stored", http.StatusInternalServerError)
				return
			}
		}
		maps.Copy(w.Header(), sc.Header)
		w.WriteHeader(sc.Status)
		w.Write(sc.Body)
	}), stop, nil
}
