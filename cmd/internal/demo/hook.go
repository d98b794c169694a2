package demo

import "github.com/agentmesh/agentmesh/node/wire"

// AnswerAsSarah is Sarah's agent in the demo: an exec hook (AM-72, AM-74). It returns the payload of the answer to a
// call, or false if the agent does not answer; the sender then gets {"action":"received"}. Sarah's agent answers a
// proposal with a counterproposal for 45 minutes at its own café, and an accept with an accept.
func AnswerAsSarah(call wire.Value) (answer wire.Value, ok bool) {
	message, _ := call.Get("message")
	payload, _ := message.Get("payload")
	switch payload.GetStr("action") {
	case "propose":
		event, _ := payload.Get("event")
		times, _ := event.Get("proposed_times")
		if times.Len() == 0 {
			return wire.Value{}, false
		}
		event = wire.Obj(
			wire.TextField("title", event.GetStr("title")),
			wire.Field("selected_time", times.At(0)),
			wire.TextField("duration", "45m"),
			wire.TextField("location", "Sightglass Coffee, SoMa"),
		)
		return wire.Obj(
			wire.TextField("action", "counter"),
			wire.Field("event", event),
		), true
	case "accept":
		return wire.Obj(wire.TextField("action", "accept")), true
	}
	return wire.Value{}, false
}
