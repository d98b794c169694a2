package demo

import (
	"encoding/json"

	"github.com/agentmesh/agentmesh/node/wire"
)

// AnswerAsSarah is Sarah's agent in the demo: an exec hook (AM-72, AM-74). It returns the answer to a call, or "" for
// none; then the sender gets {"action":"received"}. Sarah's agent answers a proposal with a counter for 45 minutes at
// its own café, and an accept with an accept.
func AnswerAsSarah(call wire.Value) (string, error) {
	message, _ := call.Get("message")
	payload, _ := message.Get("payload")
	answer, ok := answerAsSarah(payload)
	if !ok {
		return "", nil
	}
	line, err := json.Marshal(struct {
		Payload wire.Value `json:"payload"`
	}{answer})
	return string(line), err
}

func answerAsSarah(payload wire.Value) (wire.Value, bool) {
	switch payload.GetStr("action") {
	case "propose":
		event, _ := payload.Get("event")
		times, _ := event.Get("proposed_times")
		if times.Len() == 0 {
			return wire.Value{}, false
		}
		event = wire.Obj(
			wire.Member{Key: "title", Value: wire.Text(event.GetStr("title"))},
			wire.Member{Key: "selected_time", Value: times.At(0)},
			wire.Member{Key: "duration", Value: wire.Text("45m")},
			wire.Member{Key: "location", Value: wire.Text("Sightglass Coffee, SoMa")},
		)
		return wire.Obj(
			wire.Member{Key: "action", Value: wire.Text("counter")},
			wire.Member{Key: "event", Value: event},
		), true
	case "accept":
		return wire.Obj(wire.Member{Key: "action", Value: wire.Text("accept")}), true
	}
	return wire.Value{}, false
}
