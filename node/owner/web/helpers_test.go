package web_test

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/web"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The steps that these tests share with those of other packages.
var (
	pendingAsks = meshtest.PendingAsks
	onlyAsk     = meshtest.OnlyAsk
	decide      = meshtest.Decide
	inbound     = meshtest.Inbound
	mustSend    = meshtest.MustSend
	to          = meshtest.ForeignMessage
	outgoing    = meshtest.Outgoing
	waitFor     = meshtest.WaitFor
	unlimited   = meshtest.Unlimited
	withBook    = meshtest.WithBook
	must        = meshtest.Must
	mode        = meshtest.Mode
)

const (
	hello          = `{"action":"deliver","message":{"body":"hello"}}`
	proposeSeveral = `{"action":"propose","event":{"title":"Coffee","proposed_times":["2036-02-21T10:00:00-08:00","2036-02-21T14:00:00-08:00"],"duration":"30m","location":"TBD"}}`
)

// namedSetup is the process around a node whose owner has named it, without a program.
type namedSetup struct{ page *ownerPage }

func (s namedSetup) Profile() web.Profile {
	directories := append([]string{"https://directory.example/v1"}, s.page.directories...)
	return web.Profile{Name: "Sarah's agent", Owner: "Sarah", Description: "Schedules.", Directories: directories, File: "/data/agentmesh.yaml", Fixed: []string{"name"}}
}
func (namedSetup) SaveProfile(context.Context, web.Profile) error {
	return errors.New("name: not today")
}
func (s namedSetup) Programs() web.Programs {
	programs := web.Programs{Data: "/my data"}
	if at := s.page.doorUsed.Load(); at > 0 {
		programs.DoorUsed = time.Unix(at, 0)
	}
	return programs
}
func (namedSetup) LookUp(_ context.Context, id wire.AgentID) []owner.Found {
	card := wire.Obj(wire.Member{Key: "agent_id", Value: wire.Text(string(id))}, wire.Member{Key: "name", Value: wire.Text("<b>chris")})
	return []owner.Found{{Directory: "https://directory.example/v1", Listing: wire.Listing{Agents: []wire.Value{card}}, Unproven: []wire.AgentID{id}}}
}
func (namedSetup) EchoAddress() string { return "echo:self/echo" }
