package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// databaseFile is the name of agentmesh's database in a data directory.
const databaseFile = "agentmesh.db"

// bigDirectory is a directory of many cards, opened in this process.
type bigDirectory struct {
	*bolt.Store
	registry *directory.Registry
	corpus   *corpus
}

func openBig(ctx context.Context, dir string) (*bigDirectory, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	st, err := bolt.Open(ctx, filepath.Join(dir, databaseFile), bolt.Config{})
	if err != nil {
		return nil, err
	}
	return &bigDirectory{
		Store:    st,
		registry: directory.New(directory.Config{Store: st, BaseURL: "http://127.0.0.1/v1", Local: true}),
		corpus:   newCorpus("big"),
	}, nil
}

// fillBig registers cards in the database in dir until it has at least n cards of the corpus. Each card is a
// registration of its own, as if from a stranger.
func fillBig(ctx context.Context, p *progress, dir string, n int) (err error) {
	b, err := openBig(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	now := time.Now()
	count, err := b.Cards().Count(ctx, now)
	if err != nil {
		return err
	}
	// The first missing card of the corpus has the number have. count includes other cards, too.
	have := sort.Search(count, func(i int) bool {
		_, err := b.Cards().Get(ctx, string(b.corpus.id(i)), now)
		return err != nil
	})
	return callEach(max(0, n-have), func(i int) error {
		i += have
		if i%1000 == 0 {
			p.say("register %d of %d cards", i, n)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		card := b.corpus.card(i)
		_, err := b.registry.Register(ctx, directory.Submission{Bearer: benchCredential, Body: func() ([]byte, error) { return card, nil }})
		if err != nil {
			return fmt.Errorf("register card %d: %w", i, err)
		}
		return nil
	})
}

// renew renews card i as its owner would.
func (b *bigDirectory) renew(ctx context.Context, i int) error {
	_, err := b.registry.Renew(ctx, b.corpus.id(i), directory.Submission{Bearer: benchCredential})
	return err
}
