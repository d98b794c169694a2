package node_test

import "github.com/agentmesh/agentmesh/node/meshtest"

// The steps that these tests share with those of other packages.
var (
	pendingAsks = meshtest.PendingAsks
	theAsk      = meshtest.OnlyAsk
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
