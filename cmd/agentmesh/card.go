package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

type cardCmd struct {
	Show     cardShowCmd     `cmd:"" default:"withargs" help:"Print the agent's own card."`
	Get      cardGetCmd      `cmd:"" help:"Print the card of another agent."`
	Validate cardValidateCmd `cmd:"" help:"Check a card. Exit code 0: valid, 65: invalid."`
}

type cardShowCmd struct{}

func (c *cardShowCmd) Run(ctx context.Context, a *app) error {
	return a.showJSON(ctx, owner.ShowCard.Call())
}

type cardGetCmd struct {
	Agent string `arg:"" help:"Agent id, alias, or a name as it is shown."`
}

func (c *cardGetCmd) Run(ctx context.Context, a *app) error {
	return a.showJSON(ctx, getCall[wire.Value]("cards/"+url.PathEscape(c.Agent), nil))
}

// showJSON makes a call and prints the answer as JSON, even without --json.
func (a *app) showJSON(ctx context.Context, c owner.Call[wire.Value]) error {
	a.globals.JSON = true
	return callAndShow(ctx, a, c, nil)
}

type cardValidateCmd struct {
	File string `arg:"" help:"File with a card, or - for standard input."`
}

type cardReport struct {
	AgentID     string `json:"agent_id"`
	Name        string `json:"name"`
	Kind        string `json:"kind"`
	Fingerprint string `json:"fingerprint"`
	Derived     bool   `json:"id_is_derived"`
}

func (c *cardValidateCmd) Run(_ context.Context, a *app) error {
	v, err := a.readObject(c.File)
	if err != nil {
		return err
	}
	anyHost := func(string) bool { return true } // each node that reads the card decides whether to accept plain HTTP
	card, err := wire.ParseCard(v, wire.CardRules{AllowHTTP: anyHost})
	if err != nil {
		return exit.Fail(exit.Input, fmt.Errorf("card refused: %w", err))
	}
	if n := len(v.JSON()); n > wire.MaxCard {
		return exit.Fail(exit.Input, fmt.Errorf("card refused: it has %d bytes; the limit is %d", n, wire.MaxCard))
	}
	key, err := signing.ParsePublicKey(card.PublicKey)
	if err == nil {
		err = key.Usable(time.Now())
	}
	if err != nil {
		return exit.Fail(exit.Input, fmt.Errorf("card refused: public_key: %w", err))
	}
	if card.HasPrivateLists() {
		a.Note("the card publishes an allowlist or a block list; directories drop such lists") // AM-6
	}
	proofErr := signing.ProvesID(card, key, time.Now())
	if proofErr != nil && card.ID.HasDerivedShape() {
		a.Note("directories refuse this card, because only the key from which the id is derived may use the id: %v", proofErr)
	}
	r := cardReport{string(card.ID), card.Name, string(key.Kind()), key.Fingerprint(), proofErr == nil}
	return a.report(r, func() { a.Print("ok: %s, key %s", terminal.Clean(r.AgentID), r.Fingerprint) })
}
