package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// checkCmd reads everything in the data directory and says what is wrong with it. It needs the database for itself.
type checkCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

type checkReport struct {
	OK            bool     `json:"ok"`
	Conversations int      `json:"conversations"`
	Problems      []string `json:"problems"`
}

func (c *checkCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return noAgent(dir)
	}
	h, err := openHome(dir)
	if err != nil {
		return err
	}
	if !h.initialised() && !h.hasDatabase() {
		return noAgent(dir)
	}
	stop := a.working("reading "+dir, nil)
	defer stop()
	report := checkReport{Problems: []string{}}
	if h.initialised() {
		report.add(h.checkSecrets(a.passphrase))
	}
	if h.lostDatabase() {
		report.add(fmt.Errorf("%s: %w", h.path(fileDatabase), errNoDatabase))
	}
	if h.hasDatabase() {
		err := bolt.Check(ctx, h.path(fileDatabase))
		if errors.Is(err, bolt.ErrLocked) {
			return h.inUse()
		}
		report.add(err)
		if err == nil {
			if report.Conversations, err = h.checkTranscripts(ctx); err != nil {
				report.add(err)
			}
		}
	}
	stop()
	report.OK = len(report.Problems) == 0
	if err := a.showCheck(report, c.JSON); err != nil {
		return err
	}
	if !report.OK {
		return quietly(exitNo)
	}
	return nil
}

func (r *checkReport) add(err error) {
	if err != nil {
		r.Problems = append(r.Problems, strings.Split(err.Error(), "\n")...)
	}
}

func (a *app) showCheck(r checkReport, asJSON bool) error {
	if asJSON {
		return a.json(r)
	}
	for _, p := range r.Problems {
		a.print("%s", clean(p))
	}
	if r.OK {
		a.print("ok: %d conversations, every transcript whole", r.Conversations)
	}
	return nil
}

// checkSecrets says whether keys and card are there, readable and of one agent.
func (h home) checkSecrets(passphrase func() ([]byte, error)) error {
	s, err := h.secrets(passphrase)
	if err != nil {
		return err
	}
	card, err := h.card()
	if err != nil {
		return err
	}
	public, err := signing.ParsePublicKey(card.GetStr("public_key"))
	if err != nil {
		return fmt.Errorf("%s: public_key: %w", fileCard, err)
	}
	if public.Fingerprint() != s.key.Public().Fingerprint() {
		return fmt.Errorf("%s: public_key is not that of %s", fileCard, fileKey)
	}
	return nil
}

// checkTranscripts verifies the hash chain of every conversation.
func (h home) checkTranscripts(ctx context.Context) (n int, err error) {
	s, err := bolt.Open(ctx, h.path(fileDatabase), bolt.Config{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	book := conversations.Book{Steps: s.Steps()}
	now := time.Now()
	var faults []error
	for before := uint64(0); ; {
		page, err := s.Steps().Conversations(ctx, "", before, 500, now)
		if err != nil {
			return n, err
		}
		for _, row := range page.Conversations {
			n++
			if err := book.Check(ctx, row.Key, now); err != nil && !errors.Is(err, store.ErrNotFound) {
				faults = append(faults, fmt.Errorf("conversation %s with %s: %w", row.Key.ID, row.Key.Peer, err))
			}
		}
		if before = page.Next; before == 0 {
			return n, errors.Join(faults...)
		}
	}
}
