package exchange

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestMisspeltRulesAreRefused: a misspelled rule would match everything or nothing, and hide the good ones.
func TestMisspeltRulesAreRefused(t *testing.T) {
	l := newLab(t)
	l.executor("a")
	l.do(thread.OwnerID, "- config: {routing: {rules: [{match: {capability: knife}, prefer: [a]}]}}")
	for rules, want := range map[string]string{
		"{rules: [{match: {capabilty: knife}, prefer: [a]}]}":           `routing.rules[0].match: unknown key "capabilty", did you mean "capability"?`,
		"{rules: [{match: {}, prefers: [a], prefer: [a]}]}":             `routing.rules[0]: unknown key "prefers", did you mean "prefer"?`,
		"{rules: [{matches: {capability: knife}, prefer: [a]}]}":        `routing.rules[0]: unknown key "matches", did you mean "match"?`,
		"{rules: [{match: {priority: urgent}, prefer: [a]}]}":           `routing.rules[0].match: unknown key "priority"`,
		"{rules: [{match: {'a key with markup <b>': 1}, prefer: [a]}]}": `routing.rules[0].match: unknown key`,
		"{rule: [{match: {capability: knife}, prefer: [a]}]}":           `routing: unknown key "rule", did you mean "rules"?`,
		"{}": "routing.rules: is required",
		"{rules: [{default: [a], defualt: [a]}]}":                                 `routing.rules[0]: unknown key "defualt", did you mean "default"?`,
		"{rules: [{match: {capability: knife, urgncy: now}, prefer: [a]}], v: 1}": `routing: unknown key "v"`,
	} {
		_, err := l.try(thread.OwnerID, "- config: {routing: "+rules+"}")
		if statusOf(err) != 400 || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", rules, err, want)
		}
	}
	if rules, err := l.Executors.Rules(); err != nil || rules.Len() != 1 || !strings.Contains(string(rules.JSON()), "knife") {
		t.Errorf("the rules are %s", rules.JSON())
	}
}
