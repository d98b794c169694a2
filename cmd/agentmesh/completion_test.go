package main

import (
	"io"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/cmd/internal/manual"
)

func TestComplete(t *testing.T) {
	var cli commands
	peers := func() []string { return []string{"bob", "bobby"} }
	model := newParser(&cli, io.Discard, io.Discard).Model.Node
	for _, tc := range []struct {
		words []string
		want  []string
	}{
		{[]string{"inb"}, []string{"inbox"}},
		{[]string{"approvals", ""}, []string{"list", "show", "approve", "reject"}},
		{[]string{"--data", "x", "keys", "exp"}, []string{"export-public"}},
		{[]string{"send", "--wa"}, []string{"--wait"}},
		{[]string{"inbox", "--fo"}, []string{"--follow"}},
		{[]string{"demo-h"}, nil},
		{[]string{"nothing", "zzz"}, nil},
		{[]string{"send", ""}, []string{"bob", "bobby"}},
		{[]string{"peers", "allow", "bobb"}, []string{"bobby"}},
	} {
		if diff := cmp.Diff(tc.want, manual.Complete(model, tc.words, peers)); diff != "" {
			t.Errorf("complete(%q) (-want +got):\n%s", tc.words, diff)
		}
	}
	if all := manual.Complete(model, nil, peers); !slices.Contains(all, "serve") || slices.Contains(all, "demo-hook") {
		t.Errorf("complete() = %q", all)
	}
}
