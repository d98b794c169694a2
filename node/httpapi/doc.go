// Package httpapi is the HTTP edge that every service shares: a thin band of echo, and all of it.
//
// A service mounts its routes on [Server.Echo] and returns errors; this package turns them into the error body
// of the specification (AM-27, AM-28), the log line and the status. It decodes bodies ([Body]), writes JSON
// ([JSON], [Raw]), names the client ([ClientAddr]), and holds the listener-wide guards: time-outs and sizes
// (AM-76), connection caps, loopback-only hosts and cross-origin checks of the local profile (AM-82), and the
// limit per address ([Addresses], AM-43). [Owner] is the second listener, for the owner alone (AM-77).
//
// openapi.yaml describes the public routes of all services; [OpenAPI] returns it.
//
// It knows no message, no card and no storage. Handlers stay five visible steps (decode, authenticate,
// authorise, act, respond), so that another router is a day's work.
//
// Start with [New] and [Server.Serve].
package httpapi
