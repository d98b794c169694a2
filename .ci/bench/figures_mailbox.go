package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"
)

// measureMailboxes measures the memory of a directory for each mailbox whose agent is connected and polls. The
// garbage collector of the directory runs often, so that garbage does not count.
func (s *study) measureMailboxes(ctx context.Context) (err error) {
	srv, err := s.mesh.serveWith(ctx, []string{"GOGC=5"}, filepath.Join(s.dir, "mailboxes"), "--roles", "directory",
		"--set", "network.max_connections=0", "--set", "network.max_connections_per_address=0")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	b, err := srv.bench(1)
	if err != nil {
		return err
	}
	s.p.say("mailboxes: register %d", s.Mailboxes)
	bearer := func(i int) string { return fmt.Sprintf("Bearer %s-%06d", benchCredential, i) }
	err = callEach(s.Mailboxes, func(i int) error {
		id := b.corpus.id(i)
		card := cardJSON(id, "Agent", "Polls for mail.", srv.Directory+"/mailbox/"+string(id), b.corpus.keys[i%corpusKeys].text, []string{"polling"}, nil)
		_, err := sendOnce(ctx, b.directory, request(http.MethodPost, b.directory, b.path("/agents"), card, "Authorization", bearer(i)), http.StatusCreated)
		if err != nil {
			return fmt.Errorf("register a mailbox: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := sleep(ctx, s.Idle); err != nil {
		return err
	}
	before, err := resident(srv.PID)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	s.p.say("mailboxes: connect %d", s.Mailboxes)
	clients := make([]httpClient, s.Mailboxes)
	defer func() {
		for i := range clients {
			clients[i].close()
		}
	}()
	start := time.Now()
	err = callEach(len(clients), func(i int) error {
		clients[i].base = b.directory
		if err := clients[i].dial(ctx); err != nil {
			return err
		}
		// Nobody reads the response: the connection only has to stay open.
		_, err := clients[i].conn.Write(request(http.MethodGet, b.directory, b.path("/relay?wait=30"), nil, "Authorization", bearer(i)))
		return err
	})
	if err != nil {
		return err
	}
	if err := awaitConnections(ctx, srv.url(), len(clients)); err != nil {
		return err
	}
	took := time.Since(start)
	if err := sleep(ctx, s.Idle); err != nil { // until the memory that net/http used at the start goes back to the system
		return err
	}
	after, err := resident(srv.PID)
	if err != nil {
		return err
	}
	s.add(newFigure(fmt.Sprintf("resident memory of a connected mailbox, %d of them", s.Mailboxes), float64(after-before)/float64(s.Mailboxes)/1024, "KiB",
		"GOGC=5; all connected after %.1f s", took.Seconds()).withMax(12))
	return ctx.Err()
}
