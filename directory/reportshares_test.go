package directory

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestReportsAreShared: a network that made all reports of a card, or of all cards, does not keep others from reporting
// to the operator (AM-42).
func TestReportsAreShared(t *testing.T) {
	for _, network := range apitest.Networks {
		t.Run(network.Name, func(t *testing.T) {
			w := newWorldWithCards(t, 80)
			w.reg.reporters = rate.NewAllowance(rate.PerHour(1000), 1000, 10_000) // otherwise the attacker would need days
			report := func(card int, from netip.Addr) error {
				return w.reg.Report(t.Context(), wire.AgentID(fmt.Sprintf("am_%03d", card)), ReportRequest{Kind: "spam", Text: from.String()}, from)
			}
			from := func(address string) int {
				n := 0
				for after := ""; ; {
					page, next, err := w.reg.Reports(t.Context(), "", after, 100)
					if err != nil {
						t.Fatal(err)
					}
					for _, r := range page {
						if address == "" || r.From == address {
							n++
						}
					}
					if after = next; after == "" {
						return n
					}
				}
			}
			for i := range maxPerCard {
				if err := report(0, network.Addr(i)); err != nil {
					t.Fatal(err)
				}
			}
			if err := report(0, network.Addr(maxPerCard)); !errors.Is(err, wire.ErrQuota) {
				t.Errorf("one more report of the network about its card: %v", err)
			}
			if err := report(0, apitest.Newcomer); err != nil {
				t.Errorf("another report about that card: %v", err)
			}
			var changes []store.Change
			for i := range maxReports - maxPerCard {
				id, client := wire.AgentID(fmt.Sprintf("am_%03d", 1+i%60)), network.Addr(i)
				body, err := json.Marshal(Report{credential.HashOf(fmt.Sprint(i)).Name(), id, "spam", "", addressKey(client), wire.Now()})
				if err != nil {
					t.Fatal(err)
				}
				rec := store.Record{NS: reportNS, Key: credential.HashOf(fmt.Sprint(i)).Name(), Body: body, Terms: []string{"card:" + string(id)}, Expires: wire.Now().Add(reportLife)}
				changes = append(changes, store.Change{Record: rec})
			}
			if err := w.reg.recs.Apply(t.Context(), changes, wire.Now()); err != nil {
				t.Fatal(err)
			}
			if n := from(""); n != maxReports {
				t.Fatalf("%d reports are kept, want %d", n, maxReports)
			}
			if err := report(70, network.Addr(7)); !errors.Is(err, wire.ErrQuota) {
				t.Errorf("one more report of the network: %v", err)
			}
			if err := report(70, apitest.Newcomer); err != nil {
				t.Errorf("a report of another network: %v", err)
			}
			for i := range 4 {
				if err := report(71, apitest.HostedAddr(i)); err != nil {
					t.Errorf("report %d from a hosting provider: %v", i, err)
				}
			}
			if n := from(apitest.Newcomer.String()); n != 2 || from("") != maxReports {
				t.Errorf("the newcomer has %d reports of %d, want 2 of %d", n, from(""), maxReports)
			}
		})
	}
}
