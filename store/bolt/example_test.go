package bolt_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx, now := context.Background(), time.Now()
	s, err := bolt.Open(ctx, filepath.Join(dir, "mesh.db"), bolt.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	_, err = s.Cards().Put(ctx, store.PutCard{
		Card: store.Card{ID: "am_sarah", Terms: []string{"cap:scheduling", "name:sarah"}, Body: []byte(`{…}`), Expires: now.Add(time.Hour)},
		Now:  now,
	})
	if err != nil {
		log.Fatal(err)
	}
	page, err := s.Cards().List(ctx, store.CardQuery{
		All:   []string{"cap:scheduling"},
		Tiers: []store.Tier{{All: []string{"name:sar"}}, {Prefix: "name:sar"}},
		Limit: 20,
		Now:   now,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, card := range page.Cards {
		fmt.Println(card.ID)
	}
	// Output: am_sarah
}
