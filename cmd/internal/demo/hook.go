package demo

import (
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// dinner is what the two agents never settle.
const dinner = "Dinner"

// Answer is the agent of name in the demo: an exec hook (AM-72, AM-74). It returns the payload of the answer to a call,
// or false if the agent has nothing to say. Sarah's agent wants more time for a coffee, at her own café, and Chris's agent
// wants it later. About a dinner, neither gives in.
func Answer(name string, call wire.Value) (answer wire.Value, ok bool) {
	message, _ := call.Get("message")
	payload, _ := message.Get("payload")
	event, _ := payload.Get("event")
	times := timesOf(event)
	if len(times) == 0 {
		return wire.Value{}, false
	}
	at, _ := wire.ParseTime(times[0])
	offer := func(later time.Duration, more ...wire.Member) (wire.Value, bool) {
		event := append([]wire.Member{
			wire.TextField("title", event.GetStr("title")), wire.TextField("selected_time", at.Add(later).Format(time.RFC3339)),
		}, more...)
		return wire.Obj(wire.TextField("action", "counter"), wire.Field("event", wire.Obj(event...))), true
	}
	switch isSarah := name == "Sarah"; {
	case event.GetStr("title") == dinner && isSarah:
		return offer(15 * time.Minute)
	case event.GetStr("title") == dinner:
		return offer(-10 * time.Minute)
	case !isSarah:
		return offer(30 * time.Minute)
	case payload.GetStr("action") == "propose":
		return offer(0, wire.TextField("duration", "45m"), wire.TextField("location", "Sightglass Coffee, SoMa"))
	}
	return wire.Obj(wire.TextField("action", "accept")), true
}

// timesOf returns the times of an event.
func timesOf(event wire.Value) []string {
	times := event.GetTexts("proposed_times")
	if t := event.GetStr("selected_time"); t != "" {
		times = append(times, t)
	}
	return times
}
