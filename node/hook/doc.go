// Package hook implements what runs behind a node: a program, a webhook, an OpenClaw gateway, an A2A agent, the owner's
// calendars.
//
// A [Handler] gets one message as a [Call] and returns one [Answer]. Package node chooses the handler for a message,
// when it runs, and what becomes of its answer.
//
// Comments cite a rule of docs/protocol.md as AM-72 and a threat in docs/threat-model.md as THREATS 30.
package hook
