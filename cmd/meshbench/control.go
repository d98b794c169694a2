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

// script is what a control server answers: the bytes and headers of the server that it is compared with.
type script struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
	// Commit is a bbolt file in which the body of every POST is made durable under the key of its header keyHeader
	// before the answer leaves. Empty: nothing is kept.
	Commit string `json:"commit,omitempty"`
}

// keyHeader names the row of a body, so that the bare server need not look into it.
const keyHeader = "Meshbench-Key"

// scriptOf makes a control answer as a server did.
func scriptOf(a answer) script {
	h := a.Header.Clone()
	h.Del("Date") // net/http writes its own
	return script{Status: a.Status, Header: h, Body: append([]byte(nil), a.Body...)}
}

// controlCmd is a bare net/http server in a process of its own. It reads its script from standard input, prints
// where it listens, and ends when standard input does, and so with its parent.
type controlCmd struct{}

func (controlCmd) Run(ctx context.Context, s streams) error {
	in := json.NewDecoder(s.in)
	var sc script
	if err := in.Decode(&sc); err != nil {
		return fmt.Errorf("read script: %w", err)
	}
	h, stop, err := sc.handler()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, stop())
	}
	srv := &http.Server{Handler: h}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, s.in)
		cancel()
	}()
	stopped := make(chan error, 1)
	unhook := context.AfterFunc(ctx, func() { stopped <- srv.Shutdown(context.WithoutCancel(ctx)) })
	fmt.Fprintf(s.out, "{\"url\":\"http://%s\",\"pid\":%d}\n", l.Addr(), os.Getpid())
	if err := srv.Serve(l); unhook() { // the listener failed
		return errors.Join(err, stop())
	}
	return errors.Join(<-stopped, stop())
}

// handler returns the bare server and what closes its file.
func (sc script) handler() (h http.Handler, stop func() error, err error) {
	commit := func(*http.Request, []byte) error { return nil }
	stop = func() error { return nil }
	if sc.Commit != "" {
		g, err := groupedBolt(sc.Commit)
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
				http.Error(w, "not kept", http.StatusInternalServerError)
				return
			}
		}
		maps.Copy(w.Header(), sc.Header)
		w.WriteHeader(sc.Status)
		w.Write(sc.Body)
	}), stop, nil
}
