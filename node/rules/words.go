package rules

import (
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
)

// Words say why a message waits for the owner.
type Words struct {
	Hold   string // what the owner decides about: "sender" or "intent"
	Rule   string // the rule that holds the message, for the owner
	Sender string // for the sender; reveals nothing about the owner
	Owner  string // more for the owner, or ""
}

const (
	tellsSender = "The owner of this agent approves new contacts."
	tellsIntent = "The owner of this agent decides on requests of this kind."
)

// The reasons that the node gives to a sender whose answer comes later. The fixed texts reveal nothing about the owner.
const (
	ReasonUnclear = tellsIntent
	ReasonSlow    = "The message was accepted. The agent's answer comes later."
	ReasonFailed  = "The agent could not answer this message. Its owner decides what happens next."
)

var ourReasons = []string{tellsSender, tellsIntent, ReasonSlow, ReasonFailed}

// words has the words of each reason. {mode} is the access mode, {intent} that of the message, {route} who answers it,
// {bound} a bound on turns, {turns} its [turnWords].
var words = map[Reason]Words{
	BySender:  {"sender", "access.mode={mode}", tellsSender, ""},
	ByKey:     {"sender", owner.RuleUnproven, tellsSender, ""},
	BySeal:    {"intent", "hold={intent}", tellsIntent, "it came sealed, and {route} would forward it unsealed to a foreign network"},
	ByNetwork: {"intent", "hold={intent}", tellsIntent, ""},
	ByIntent:  {"intent", "hold={intent}", tellsIntent, ""},
	ByTurns:   {"turns", "autonomy.{bound}", tellsIntent, "your agent has answered {turns} without you"},
}

// turnWords say at which bound the owner's agent stopped. {n} is the number of turns, {peer} the short id of the peer.
var turnWords = map[Bound]string{
	InConversation: "{peer} {n} times in one conversation",
	WithPeer:       "{peer} {n} times today",
	WithStrangers:  "strangers {n} times today",
	WithSource:     "strangers from one network {n} times today",
	WithToken:      "{peer} {n} times today",
	InAll:          "{n} times today",
}

// WordsFor returns the words of a verdict that holds a message: those of its first reason, and what any reason tells the
// owner.
func WordsFor(v Verdict, s State, in bridge.Inbound) Words {
	most := s.Turns.Most(v.Bound)
	if v.Bound == InConversation {
		most, _ = s.Turns.Left(s.Conv, true, s.Now)
	}
	turns := strings.NewReplacer("{n}", strconv.Itoa(most), "{peer}", owner.ShortID(string(in.Peer))).Replace(turnWords[v.Bound])
	fill := strings.NewReplacer("{bound}", string(v.Bound), "{turns}", turns,
		"{mode}", string(s.Policy.Mode), "{intent}", string(in.Intent), "{route}", s.Route.Name)
	w := words[v.Waits[0]]
	w.Rule = fill.Replace(w.Rule)
	var told []string
	for _, r := range v.Waits {
		if text := words[r].Owner; text != "" {
			told = append(told, fill.Replace(text))
		}
	}
	w.Owner = strings.Join(told, "; ")
	return w
}
