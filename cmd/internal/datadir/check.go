package datadir

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

// Report is the result of [Dir.Check].
type Report struct {
	OK            bool     `json:"ok"`
	Conversations int      `json:"conversations"`
	Problems      []string `json:"problems"`
}

// Check verifies the keys, the card, the database and every transcript in the data directory. It needs exclusive use of
// the database. passphrase supplies the passphrase of the keys.
func (d Dir) Check(ctx context.Context, passphrase func() ([]byte, error)) (Report, error) {
	report := Report{Problems: []string{}}
	if _, err := os.Stat(string(d)); err != nil {
		return report, NoAgent(string(d))
	}
	if _, err := Open(string(d)); err != nil {
		return report, err
	}
	if !d.HasAgent() && !d.HasDatabase() {
		return report, NoAgent(string(d))
	}
	if d.HasAgent() {
		report.add(d.CheckSecrets(passphrase))
	}
	if d.HasLostDatabase() {
		report.add(fmt.Errorf("%s: %w", d.Path(FileDatabase), ErrNoDatabase))
	}
	if d.HasDatabase() {
		err := bolt.Check(ctx, d.Path(FileDatabase))
		if errors.Is(err, bolt.ErrLocked) {
			return report, d.InUse()
		}
		report.add(err)
		if err == nil {
			report.Conversations, err = d.checkTranscripts(ctx)
			report.add(err)
		}
	}
	report.OK = len(report.Problems) == 0
	return report, nil
}

// add adds a problem for each line of err, which may be nil.
func (r *Report) add(err error) {
	if err != nil {
		r.Problems = append(r.Problems, strings.Split(err.Error(), "\n")...)
	}
}

// CheckSecrets returns an error unless the keys and the card exist, can be read and belong to the same agent.
func (d Dir) CheckSecrets(passphrase func() ([]byte, error)) error {
	s, err := d.Secrets(passphrase)
	if err != nil {
		return err
	}
	card, err := d.Card()
	if err != nil {
		return err
	}
	public, err := signing.ParsePublicKey(card.GetStr("public_key"))
	if err != nil {
		return fmt.Errorf("%s: public_key: %w", FileCard, err)
	}
	if public.Fingerprint() != s.Key.Public().Fingerprint() {
		return fmt.Errorf("%s: public_key is not that of %s; if you replaced the key, the next start of serve corrects the card", FileCard, FileKey)
	}
	return nil
}

func (d Dir) checkTranscripts(ctx context.Context) (n int, err error) {
	s, err := bolt.Open(ctx, d.Path(FileDatabase), bolt.Config{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return verifyTranscripts(ctx, s.Steps())
}

// verifyTranscripts verifies the hash chain of every conversation, and returns the number of conversations.
func verifyTranscripts(ctx context.Context, steps store.Steps) (n int, err error) {
	book := conversations.Book{Steps: steps}
	now := time.Now()
	var faults []error
	for before := uint64(0); ; {
		page, err := steps.Conversations(ctx, "", before, 500, now)
		for _, row := range page.Conversations {
			n++
			if err := book.Check(ctx, row.Key, now); err != nil && !errors.Is(err, store.ErrNotFound) {
				faults = append(faults, fmt.Errorf("conversation %s with %s: %w", row.Key.ID, row.Key.Peer, err))
			}
		}
		if before = page.Next; before == 0 || err != nil {
			return n, errors.Join(append(faults, err)...)
		}
	}
}
