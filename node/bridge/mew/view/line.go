package view

import (
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Line describes an envelope on one line, with the names of participants of the space, and with at most 300 characters
// of its text. It does not clean the parts that participants wrote, such as names and ids.
func (s Space) Line(v wire.Value) string {
	payload, _ := v.Get("payload")
	text := payload.GetStr("text")
	if text == "" {
		text = string(payload.JSON())
	}
	ts := v.GetStr("ts")
	if sentAt, ok := wire.ParseTime(ts); ok {
		ts = sentAt.Local().Format("15:04:05")
	}
	to, _ := v.Get("to")
	var names []string
	for e := range to.Elems() {
		id, _ := e.Str()
		names = append(names, s.NameOf(id))
	}
	arrow := ""
	if len(names) > 0 {
		arrow = " → " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s %s%s %s %s: %s", ts, s.NameOf(v.GetStr("from")), arrow, v.GetStr("kind"), v.GetStr("id"), wire.OneLine(text, 300))
}
