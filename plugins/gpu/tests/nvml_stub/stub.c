/* A libnvidia-ml.so.1 without a driver, for the tests: answers from a text file that a test may change at any time.
 *
 * NVML_STUB names the file. It is read again whenever it was replaced. Each line is a word and key=value fields,
 * separated by tabs; see machines/gpu_nvml.py, which writes it. Layouts and numbers are those of NVIDIA's public nvml.h.
 * "<file>.made" has the MIG instances that were created, by this library or by a test, in the same form: they outlive
 * the process, as they do in the driver. While initialised it holds "<file>.open" open, as the real library holds /dev/nvidiactl.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, LOST = 15, IN_USE = 19, MEMORY = 20,
    NO_ROOM = 23, VERSION_MISMATCH = 25, UNKNOWN = 999
};
enum { MAX_LINES = 4096, MAX_FIELDS = 40, MAX_HANDLES = 1024, MAX_SETS = 64, MAX_LINKS = 18 };

typedef struct { char *word; int count; char *keys[MAX_FIELDS]; char *values[MAX_FIELDS]; } Line;
typedef void *Device;
typedef struct { int used; char uuid[96]; } Handle;
typedef struct { int used; long long seen; unsigned long long types; char gpus[64][96]; int gpu_count; } Set;

typedef struct {
    char bus_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } Process;
typedef struct { Device device; unsigned long long type, data; unsigned gi, ci; } Event;
typedef struct {
    unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices;
    unsigned long long memory_mib;
} Attributes;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int value_type;
    int result;
    unsigned long long value;
} FieldValue;
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique, state, health; } Fabric;
typedef struct { unsigned char cluster[16]; unsigned status, clique, state; } OldFabric;
typedef struct { unsigned version, environment, feature, dev_tools, multi_gpu; } Confidential;
typedef struct { unsigned environment, feature, dev_tools; } OldConfidential;
typedef struct {
    unsigned code, state;
    char info[128], product[128];
    unsigned enabled, year;
    unsigned short month, day, hour, minute, second;
    unsigned char status;
} Feature;
typedef struct { int supported; unsigned count; Feature features[3]; } Features;
typedef struct { Device device; unsigned id, profile, start, size; } GpuInstanceInfo;
typedef struct { Device device; void *gpu_instance; unsigned id, profile, start, size; } ComputeInstanceInfo;
typedef struct { unsigned start, size; } Placement;
typedef struct {
    unsigned version, id, p2p, slices, most, multiprocessors, copy, decoder, encoder, jpeg, ofa;
    unsigned long long memory_mib;
    char name[96];
} GpuInstanceProfile;
typedef struct {
    unsigned version, id, slices, most, multiprocessors, copy, decoder, encoder, jpeg, ofa;
    char name[96];
} ComputeInstanceProfile;
typedef struct { unsigned version; Set *set; } SetRequest;
typedef struct { unsigned version; unsigned long long types; Set *set; } RegisterRequest;
typedef struct { unsigned long long type; unsigned gpu; } SystemEvent;
typedef struct {
    unsigned version, timeout_ms;
    Set *set;
    SystemEvent *events;
    unsigned size, count;
} WaitRequest;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Line lines[MAX_LINES];
static int line_count;
static char *text;
static struct stat known, known_made;
static Handle handles[MAX_HANDLES];
static Set sets[MAX_SETS];
static int initialised, held = -1;

static const char *path(void) { return getenv("NVML_STUB"); }

static int same(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_size == b->st_size;
}

static const char *made_path(void) {
    static char name[4096];
    snprintf(name, sizeof name, "%s.made", path());
    return name;
}

static void load(void) {
    struct stat now, made;
    if (!path() || stat(path(), &now)) { line_count = 0; known.st_ino = 0; return; }
    if (stat(made_path(), &made)) memset(&made, 0, sizeof made);
    if (same(&now, &known) && same(&made, &known_made)) return;
    FILE *file = fopen(path(), "r"), *more = fopen(made_path(), "r");
    if (!file) { line_count = 0; if (more) fclose(more); return; }
    free(text);
    text = calloc(1, now.st_size + made.st_size + 2);
    size_t length = fread(text, 1, now.st_size, file);
    text[length++] = '\n';
    if (more) { text[length + fread(text + length, 1, made.st_size, more)] = 0; fclose(more); }
    fclose(file);
    known = now;
    known_made = made;
    line_count = 0;
    char *rest = text, *raw;
    while ((raw = strsep(&rest, "\n")) && line_count < MAX_LINES) {
        if (!*raw) continue;
        Line *line = &lines[line_count++];
        line->word = strsep(&raw, "\t");
        line->count = 0;
        for (char *field; (field = strsep(&raw, "\t")) && line->count < MAX_FIELDS;) {
            line->keys[line->count] = strsep(&field, "=");
            line->values[line->count++] = field ? field : "";
        }
    }
}

/* Changes the instances that exist: drops the lines that begin so, and adds a line. */
static void rewrite(const char *drop, const char *add) {
    char fresh[4200], raw[4096];
    snprintf(fresh, sizeof fresh, "%s.new", made_path());
    FILE *to = fopen(fresh, "w"), *from = fopen(made_path(), "r");
    while (from && fgets(raw, sizeof raw, from))
        if (!drop || strncmp(raw, drop, strlen(drop))) fputs(raw, to);
    if (add) fprintf(to, "%s\n", add);
    if (from) fclose(from);
    fclose(to);
    rename(fresh, made_path());
    load();
}

/* Only one process changes the instances at a time. */
static int changing(void) {
    char name[4200];
    snprintf(name, sizeof name, "%s.lock", made_path());
    int file = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    flock(file, LOCK_EX);
    return file;
}

static const char *get(const Line *line, const char *key) {
    for (int i = 0; line && i < line->count; i++)
        if (!strcmp(line->keys[i], key)) return line->values[i];
    return NULL;
}

static long long number(const Line *line, const char *key, long long otherwise) {
    const char *value = get(line, key);
    return value && *value ? strtoll(value, NULL, 0) : otherwise;
}

static Line *find(const char *word, int nth) {
    for (int i = 0; i < line_count; i++)
        if (!strcmp(lines[i].word, word) && nth-- == 0) return &lines[i];
    return NULL;
}

static Line *by(const char *word, const char *key, const char *value) {
    Line *line;
    for (int i = 0; (line = find(word, i)); i++)
        if (get(line, key) && !strcmp(get(line, key), value)) return line;
    return NULL;
}

static Device handle(const char *uuid) {
    for (int i = 0; i < MAX_HANDLES; i++)
        if (handles[i].used && !strcmp(handles[i].uuid, uuid)) return &handles[i];
    for (int i = 0; i < MAX_HANDLES; i++)
        if (!handles[i].used) {
            handles[i].used = 1;
            snprintf(handles[i].uuid, sizeof handles[i].uuid, "%s", uuid);
            return &handles[i];
        }
    return NULL;
}

static const char *uuid_of(Device device) {
    Handle *handle = device;
    return handle >= handles && handle < handles + MAX_HANDLES && handle->used ? handle->uuid : NULL;
}

static Line *gpu_of(Device device) { const char *uuid = uuid_of(device); return uuid ? by("gpu", "uuid", uuid) : NULL; }
static Line *mig_of(Device device) { const char *uuid = uuid_of(device); return uuid ? by("mig", "uuid", uuid) : NULL; }
static Line *either(Device device) { Line *line = gpu_of(device); return line ? line : mig_of(device); }

/* What a test wants to go wrong with a call: an error, or that it hangs until the line is gone. Holds the lock. */
static int fault(const char *call, const char *uuid) {
    double waited = 0;
    for (;;) {
        load();
        Line *line, *found = NULL;
        for (int i = 0; (line = find("fault", i)) && !found; i++) {
            const char *which = get(line, "call"), *gpu = get(line, "gpu");
            if (which && (!strcmp(which, call) || !strcmp(which, "*")) &&
                (!gpu || (uuid && !strcmp(gpu, uuid))))
                found = line;
        }
        if (!found) return OK;
        if (number(found, "crash", 0) == 1) _exit(9);
        if (number(found, "crash", 0)) return OK; /* afterwards */
        if (waited * 1000 >= number(found, "hang_ms", 0)) return (int)number(found, "error", OK);
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        waited += 0.02;
        pthread_mutex_lock(&lock);
    }
}

/* The crash after a call that a test wants. */
static void crash_after(const char *call) {
    Line *line;
    for (int i = 0; (line = find("fault", i)); i++)
        if (get(line, "call") && !strcmp(get(line, "call"), call) && number(line, "crash", 0) == 2) _exit(9);
}

#define ENTER(name) \
    pthread_mutex_lock(&lock); \
    int result = fault(name, NULL); \
    if (result == OK && !initialised) result = UNINITIALIZED; \
    if (result != OK) goto out;
#define LEAVE out: pthread_mutex_unlock(&lock); return result;
#define FAIL(code) do { result = (code); goto out; } while (0)
/* A call on a device: `line` is its line, of a GPU or a MIG device. */
#define ON(name, device, finder) \
    pthread_mutex_lock(&lock); \
    Line *line = NULL; \
    int result = fault(name, uuid_of(device)); \
    if (result == OK && !initialised) result = UNINITIALIZED; \
    if (result != OK) goto out; \
    if (!(line = finder(device))) FAIL(uuid_of(device) ? LOST : INVALID_ARGUMENT); \
    if (number(line, "lost", 0)) FAIL(LOST);

static int copy(char *to, unsigned size, const char *from) {
    if (!from) return NOT_SUPPORTED;
    if (strlen(from) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

/* Puts a number of a line; NOT_SUPPORTED where the line does not have it. */
static int put(const Line *line, const char *key, unsigned *to) {
    const char *value = get(line, key);
    if (!value || !*value) return NOT_SUPPORTED;
    *to = (unsigned)strtoll(value, NULL, 0);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    int result = fault("nvmlInit_v2", NULL);
    if (result == OK && !find("system", 0)) result = DRIVER_NOT_LOADED;
    if (result == OK && initialised++ == 0) {
        char name[4096];
        snprintf(name, sizeof name, "%s.open", path());
        held = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    }
    pthread_mutex_unlock(&lock);
    return result;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    ENTER("nvmlShutdown")
    if (--initialised == 0 && held >= 0) { close(held); held = -1; }
    LEAVE
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case LOST: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    ENTER("nvmlSystemGetDriverVersion")
    result = copy(to, size, get(find("system", 0), "driver"));
    LEAVE
}
int nvmlSystemGetNVMLVersion(char *to, unsigned size) {
    ENTER("nvmlSystemGetNVMLVersion")
    result = copy(to, size, get(find("system", 0), "nvml"));
    LEAVE
}
int nvmlSystemGetCudaDriverVersion(int *to) {
    ENTER("nvmlSystemGetCudaDriverVersion")
    result = put(find("system", 0), "cuda", (unsigned *)to);
    LEAVE
}
int nvmlSystemGetCudaDriverVersion_v2(int *to) { return nvmlSystemGetCudaDriverVersion(to); }

int nvmlDeviceGetCount_v2(unsigned *to) {
    ENTER("nvmlDeviceGetCount_v2")
    for (*to = 0; find("gpu", *to); ++*to) {}
    LEAVE
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *to) {
    ENTER("nvmlDeviceGetHandleByIndex_v2")
    Line *line = find("gpu", index);
    if (!line) FAIL(INVALID_ARGUMENT);
    if ((result = fault("nvmlDeviceGetHandleByIndex_v2", get(line, "uuid"))) != OK) goto out;
    if (number(line, "lost", 0)) FAIL(LOST);
    *to = handle(get(line, "uuid"));
    LEAVE
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device *to) {
    ENTER("nvmlDeviceGetHandleByUUID")
    if ((result = fault("nvmlDeviceGetHandleByUUID", uuid)) != OK) goto out;
    Line *line = by("gpu", "uuid", uuid);
    if (!line) line = by("mig", "uuid", uuid);
    if (!line) FAIL(NOT_FOUND);
    if (number(line, "lost", 0)) FAIL(LOST);
    *to = handle(uuid);
    LEAVE
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device *to) {
    ENTER("nvmlDeviceGetHandleByPciBusId_v2")
    unsigned domain, number_, device, function, a, b, c, d;
    if (sscanf(bus, "%x:%x:%x.%x", &domain, &number_, &device, &function) != 4) FAIL(INVALID_ARGUMENT);
    Line *line;
    result = NOT_FOUND;
    for (int i = 0; (line = find("gpu", i)); i++)
        if (get(line, "bus") && sscanf(get(line, "bus"), "%x:%x:%x.%x", &a, &b, &c, &d) == 4 && a == domain &&
            b == number_ && c == device && d == function) {
            result = number(line, "lost", 0) ? LOST : OK;
            *to = handle(get(line, "uuid"));
        }
    LEAVE
}

int nvmlDeviceQueryDrainState(Pci *pci, unsigned *to) {
    ENTER("nvmlDeviceQueryDrainState")
    Line *line;
    unsigned domain, bus, device;
    result = NOT_SUPPORTED;
    for (int i = 0; (line = find("gpu", i)); i++)
        if (get(line, "bus") && sscanf(get(line, "bus"), "%x:%x:%x", &domain, &bus, &device) == 3 &&
            domain == pci->domain && bus == pci->bus && device == pci->device) {
            *to = (unsigned)number(line, "drain", 0);
            result = OK;
        }
    LEAVE
}

int nvmlDeviceGetUUID(Device device, char *to, unsigned size) {
    ON("nvmlDeviceGetUUID", device, either)
    result = copy(to, size, get(line, "uuid"));
    LEAVE
}
int nvmlDeviceGetName(Device device, char *to, unsigned size) {
    ON("nvmlDeviceGetName", device, either)
    result = copy(to, size, get(line, "name"));
    LEAVE
}
int nvmlDeviceGetSerial(Device device, char *to, unsigned size) {
    ON("nvmlDeviceGetSerial", device, gpu_of)
    result = copy(to, size, get(line, "serial"));
    LEAVE
}
int nvmlDeviceGetVbiosVersion(Device device, char *to, unsigned size) {
    ON("nvmlDeviceGetVbiosVersion", device, gpu_of)
    result = copy(to, size, get(line, "vbios"));
    LEAVE
}
int nvmlDeviceGetIndex(Device device, unsigned *to) {
    ON("nvmlDeviceGetIndex", device, gpu_of)
    for (*to = 0; find("gpu", *to) != line; ++*to) {}
    LEAVE
}

/* Calls that give one unsigned number of the GPU's or MIG device's line. */
#define NUMBER(name, key, finder) \
    int name(Device device, unsigned *to) { \
        ON(#name, device, finder) \
        result = put(line, key, to); \
        LEAVE \
    }
NUMBER(nvmlDeviceGetMinorNumber, "minor", gpu_of)
NUMBER(nvmlDeviceGetArchitecture, "arch", gpu_of)
NUMBER(nvmlDeviceGetBrand, "brand", gpu_of)
NUMBER(nvmlDeviceGetNumaNodeId, "numa", gpu_of)
NUMBER(nvmlDeviceGetModuleId, "module", gpu_of)
NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization", gpu_of)
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", gpu_of)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "max_mig", gpu_of)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending", gpu_of)
NUMBER(nvmlDeviceGetGpuInstanceId, "gi", mig_of)
NUMBER(nvmlDeviceGetComputeInstanceId, "ci", mig_of)

int nvmlDeviceGetPciInfo_v3(Device device, Pci *to) {
    ON("nvmlDeviceGetPciInfo_v3", device, gpu_of)
    unsigned function = 0;
    memset(to, 0, sizeof *to);
    if (!get(line, "bus") ||
        sscanf(get(line, "bus"), "%x:%x:%x.%x", &to->domain, &to->bus, &to->device, &function) != 4)
        FAIL(UNKNOWN);
    snprintf(to->bus_id, sizeof to->bus_id, "%08X:%02X:%02X.%u", to->domain, to->bus, to->device, function & 7);
    snprintf(to->bus_legacy, sizeof to->bus_legacy, "%04X:%02X:%02X.%u", to->domain & 0xffff, to->bus & 0xff,
             to->device & 0x1f, function & 7);
    to->device_id = (unsigned)number(line, "device", 0x20B210DE);
    to->subsystem_id = (unsigned)number(line, "subsystem", 0x145810DE);
    LEAVE
}
int nvmlDeviceGetMemoryInfo(Device device, Memory *to) {
    ON("nvmlDeviceGetMemoryInfo", device, either)
    if (!get(line, "memory")) FAIL(NOT_SUPPORTED);
    to->total = number(line, "memory", 0);
    to->used = number(line, "memory_used", 0);
    to->free = to->total - to->used;
    LEAVE
}
int nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *to) {
    Memory plain;
    int result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result == OK) { to->total = plain.total; to->used = plain.used; to->free = plain.free; to->reserved = 0; }
    return result;
}
int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    ON("nvmlDeviceGetCudaComputeCapability", device, gpu_of)
    if (!get(line, "cc") || sscanf(get(line, "cc"), "%d.%d", major, minor) != 2) FAIL(NOT_SUPPORTED);
    LEAVE
}
int nvmlDeviceGetUtilizationRates(Device device, Rates *to) {
    ON("nvmlDeviceGetUtilizationRates", device, gpu_of)
    if (!get(line, "busy")) FAIL(NOT_SUPPORTED);
    to->gpu = (unsigned)number(line, "busy", 0);
    to->memory = 0;
    LEAVE
}
/* "compute" and "graphics" of a GPU's line: pid, or pid/gi/ci, separated by commas. */
static int running(Device device, const char *call, const char *key, unsigned *count, Process *to) {
    ON(call, device, gpu_of)
    unsigned room = *count;
    *count = 0;
    for (const char *rest = get(line, key); rest && *rest; rest = strchr(rest, ',') ? strchr(rest, ',') + 1 : NULL) {
        Process one = {0, 0, ~0u, ~0u};
        if (sscanf(rest, "%u/%u/%u", &one.pid, &one.gi, &one.ci) < 1) FAIL(UNKNOWN);
        if (*count < room) to[*count] = one;
        ++*count;
    }
    if (*count > room) FAIL(INSUFFICIENT_SIZE);
    LEAVE
}
#define RUNNING(name, key) \
    int name(Device device, unsigned *count, Process *to) { return running(device, #name, key, count, to); }
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, "compute")
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")
int nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *to) {
    (void)sensor;
    ON("nvmlDeviceGetTemperature", device, gpu_of)
    *to = (unsigned)number(line, "temperature", 35);
    LEAVE
}
int nvmlDeviceGetRemappedRows(Device device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failure) {
    ON("nvmlDeviceGetRemappedRows", device, gpu_of)
    if (!get(line, "remapped") ||
        sscanf(get(line, "remapped"), "%u,%u,%u,%u", correctable, uncorrectable, pending, failure) != 4)
        FAIL(NOT_SUPPORTED);
    LEAVE
}
int nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, unsigned long long *to) {
    (void)counter;
    ON("nvmlDeviceGetTotalEccErrors", device, gpu_of)
    const char *key = kind ? "ecc_uncorrected" : "ecc_corrected";
    if (!get(line, key)) FAIL(NOT_SUPPORTED);
    *to = number(line, key, 0);
    LEAVE
}
int nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values) {
    ON("nvmlDeviceGetFieldValues", device, gpu_of)
    for (int i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof key, "field%u", values[i].field);
        values[i].value_type = 1; /* unsigned int */
        values[i].result = get(line, key) ? OK : NOT_SUPPORTED;
        values[i].value = number(line, key, 0);
    }
    LEAVE
}
int nvmlDeviceGetGpuFabricInfoV(Device device, Fabric *to) {
    ON("nvmlDeviceGetGpuFabricInfoV", device, gpu_of)
    const char *cluster = get(line, "cluster");
    if (to->version != 0x02000024) FAIL(VERSION_MISMATCH);
    if (!cluster && !get(line, "fabric_state")) FAIL(NOT_SUPPORTED);
    for (int i = 0; cluster && i < 16; i++) {
        unsigned byte = 0;
        sscanf(cluster + 2 * i, "%2x", &byte);
        to->cluster[i] = (unsigned char)byte;
    }
    to->status = (unsigned)number(line, "fabric_status", 0);
    to->clique = (unsigned)number(line, "clique", 0);
    to->state = (unsigned)number(line, "fabric_state", 3);
    to->health = (unsigned)number(line, "fabric_health", 0);
    LEAVE
}
int nvmlDeviceGetGpuFabricInfo(Device device, OldFabric *to) {
    ON("nvmlDeviceGetGpuFabricInfo", device, gpu_of)
    if (!get(line, "fabric_state")) FAIL(NOT_SUPPORTED);
    memset(to, 0, sizeof *to);
    to->status = (unsigned)number(line, "fabric_status", 0);
    to->state = (unsigned)number(line, "fabric_state", 0);
    LEAVE
}
int nvmlSystemGetConfComputeSettings(Confidential *to) {
    ENTER("nvmlSystemGetConfComputeSettings")
    if (to->version != 0x01000014) FAIL(VERSION_MISMATCH);
    if ((result = put(find("system", 0), "confidential", &to->feature)) != OK) goto out;
    to->multi_gpu = (unsigned)number(find("system", 0), "protected_pcie", 0);
    LEAVE
}
int nvmlSystemGetConfComputeState(OldConfidential *to) {
    ENTER("nvmlSystemGetConfComputeState")
    result = put(find("system", 0), "confidential", &to->feature);
    LEAVE
}
int nvmlSystemGetConfComputeGpusReadyState(unsigned *to) {
    ENTER("nvmlSystemGetConfComputeGpusReadyState")
    result = put(find("system", 0), "ready", to);
    LEAVE
}
int nvmlDeviceGetGridLicensableFeatures_v4(Device device, Features *to) {
    ON("nvmlDeviceGetGridLicensableFeatures_v4", device, gpu_of)
    memset(to, 0, sizeof *to);
    to->supported = get(line, "licensed") != NULL;
    to->count = (unsigned)to->supported;
    to->features[0].code = 1;
    to->features[0].enabled = 1;
    to->features[0].state = (unsigned)number(line, "licensed", 0);
    LEAVE
}

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    ON("nvmlDeviceGetMigMode", device, gpu_of)
    if ((result = put(line, "mig", current)) != OK) goto out;
    *pending = (unsigned)number(line, "mig_pending", *current);
    LEAVE
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *to) {
    ON("nvmlDeviceGetMigDeviceHandleByIndex", device, gpu_of)
    if (number(line, "mig", 0) != 1) FAIL(NOT_FOUND);
    Line *mig;
    result = NOT_FOUND;
    for (int i = 0; (mig = find("mig", i)); i++)
        if (!strcmp(get(mig, "parent"), get(line, "uuid")) && number(mig, "index", -1) == (long long)index) {
            *to = handle(get(mig, "uuid"));
            result = OK;
        }
    LEAVE
}
int nvmlDeviceIsMigDeviceHandle(Device device, unsigned *to) {
    ON("nvmlDeviceIsMigDeviceHandle", device, either)
    *to = mig_of(device) != NULL;
    LEAVE
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device device, Device *to) {
    ON("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device, mig_of)
    *to = handle(get(line, "parent"));
    LEAVE
}
int nvmlDeviceGetAttributes_v2(Device device, Attributes *to) {
    ON("nvmlDeviceGetAttributes_v2", device, mig_of)
    memset(to, 0, sizeof *to);
    to->multiprocessors = (unsigned)number(line, "multiprocessors", 14);
    to->copy = (unsigned)number(line, "copy", 1);
    to->decoder = (unsigned)number(line, "decoder", 0);
    to->encoder = (unsigned)number(line, "encoder", 0);
    to->jpeg = (unsigned)number(line, "jpeg", 0);
    to->ofa = (unsigned)number(line, "ofa", 0);
    to->gi_slices = (unsigned)number(line, "gi_slices", 1);
    to->ci_slices = (unsigned)number(line, "ci_slices", 1);
    to->memory_mib = number(line, "memory_mib", 9728);
    LEAVE
}

/* GPU instances are lines "gi", with the key "<GPU>/<id>"; each compute instance is a MIG device. */
static Line *gi_of(void *instance) {
    const char *key = uuid_of(instance);
    return key && !strncmp(key, "gi ", 3) ? by("gi", "key", key + 3) : NULL;
}
static Device gi_handle(const char *key) {
    char name[96];
    snprintf(name, sizeof name, "gi %s", key);
    return handle(name);
}
static Line *profile_of(const Line *gpu, const char *key, unsigned value) {
    Line *line;
    for (int i = 0; (line = find("profile", i)); i++)
        if (get(gpu, "model") && !strcmp(get(line, "model"), get(gpu, "model")) &&
            number(line, key, -1) == (long long)value)
            return line;
    return NULL;
}
static int is_of(const Line *line, const char *key, const Line *gpu) {
    return get(line, key) && !strcmp(get(line, key), get(gpu, "uuid"));
}
/* The start number n of a profile; -1 if it has fewer. */
static int start_of(const Line *profile, int n) {
    const char *at = get(profile, "starts");
    while (at && n-- > 0) { at = strchr(at, ','); at = at ? at + 1 : NULL; }
    return at ? atoi(at) : -1;
}

int nvmlDeviceGetGpuInstanceById(Device device, unsigned id, void **to) {
    ON("nvmlDeviceGetGpuInstanceById", device, gpu_of)
    Line *one;
    result = NOT_FOUND;
    for (int i = 0; (one = find("gi", i)); i++)
        if (is_of(one, "gpu", line) && number(one, "id", -1) == (long long)id) {
            *to = gi_handle(get(one, "key"));
            FAIL(OK);
        }
    for (int i = 0; (one = find("mig", i)); i++)
        if (is_of(one, "parent", line) && number(one, "gi", -1) == (long long)id) {
            *to = handle(get(one, "uuid"));
            FAIL(OK);
        }
    LEAVE
}
int nvmlGpuInstanceGetInfo(void *instance, GpuInstanceInfo *to) {
    ENTER("nvmlGpuInstanceGetInfo")
    Line *line = gi_of(instance), *mig = mig_of(instance);
    if (!line && !mig) FAIL(NOT_FOUND);
    memset(to, 0, sizeof *to);
    to->device = handle(line ? get(line, "gpu") : get(mig, "parent"));
    to->id = (unsigned)(line ? number(line, "id", 0) : number(mig, "gi", 0));
    to->profile = (unsigned)(line ? number(line, "profile", 0) : number(mig, "profile_id", 0));
    to->start = (unsigned)number(line ? line : mig, "start", 0);
    to->size = (unsigned)number(line ? line : mig, "size", 1);
    LEAVE
}
int nvmlDeviceGetGpuInstanceProfileInfoV(Device device, unsigned index, GpuInstanceProfile *to) {
    ON("nvmlDeviceGetGpuInstanceProfileInfoV", device, gpu_of)
    if (to->version != 0x02000098) FAIL(VERSION_MISMATCH);
    if (index >= 18) FAIL(INVALID_ARGUMENT);
    Line *profile = profile_of(line, "index", index);
    if (!profile) FAIL(NOT_SUPPORTED);
    to->id = (unsigned)number(profile, "id", 0);
    to->p2p = 0;
    to->slices = (unsigned)number(profile, "slices", 1);
    to->most = (unsigned)number(profile, "most", 1);
    to->multiprocessors = (unsigned)number(profile, "sm", 0);
    to->copy = (unsigned)number(profile, "copy", 0);
    to->decoder = (unsigned)number(profile, "decoder", 0);
    to->encoder = 0;
    to->jpeg = (unsigned)number(profile, "jpeg", 0);
    to->ofa = (unsigned)number(profile, "ofa", 0);
    to->memory_mib = number(profile, "memory", 0);
    result = copy(to->name, sizeof to->name, get(profile, "name"));
    LEAVE
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Device device, unsigned id, Placement *to, unsigned *count) {
    ON("nvmlDeviceGetGpuInstancePossiblePlacements_v2", device, gpu_of)
    Line *profile = profile_of(line, "id", id);
    if (!profile) FAIL(NOT_SUPPORTED);
    for (*count = 0; start_of(profile, (int)*count) >= 0; ++*count)
        if (to) to[*count] = (Placement){(unsigned)start_of(profile, (int)*count), (unsigned)number(profile, "size", 1)};
    LEAVE
}
/* Whether an instance of a profile fits at a place beside those that exist. */
static int fits(const Line *gpu, const Line *profile, unsigned start, unsigned size) {
    static const char *parts[] = {"sm", "copy", "decoder", "jpeg", "ofa"};
    Line *one, *whole = profile_of(gpu, "slices", 7);
    long long count = 0, used[5] = {0};
    for (int i = 0; (one = find("gi", i)); i++) {
        if (!is_of(one, "gpu", gpu)) continue;
        unsigned from = (unsigned)number(one, "start", 0), length = (unsigned)number(one, "size", 1);
        if (start < from + length && from < start + size) return 0;
        count += number(one, "profile", -1) == number(profile, "id", -2);
        for (int k = 0; k < 5; k++)
            used[k] += number(profile_of(gpu, "id", (unsigned)number(one, "profile", 0)), parts[k], 0);
    }
    for (int k = 0; k < 5; k++)
        if (used[k] + number(profile, parts[k], 0) > number(whole, parts[k], 0)) return 0;
    return count < number(profile, "most", 1);
}
int nvmlDeviceCreateGpuInstanceWithPlacement(Device device, unsigned id, const Placement *at, void **to) {
    int file = -1;
    ON("nvmlDeviceCreateGpuInstanceWithPlacement", device, gpu_of)
    file = changing();
    load();
    line = gpu_of(device);
    Line *profile = line ? profile_of(line, "id", id) : NULL, *one;
    if (!line || number(line, "mig", 0) != 1) FAIL(NOT_SUPPORTED);
    int possible = 0;
    for (int i = 0; profile && start_of(profile, i) >= 0; i++)
        possible |= (unsigned)start_of(profile, i) == at->start && number(profile, "size", 1) == (long long)at->size;
    if (!possible) FAIL(INVALID_ARGUMENT);
    if (!fits(line, profile, at->start, at->size)) FAIL(NO_ROOM);
    unsigned fresh_id = 1;
    for (int i = 0; (one = find("gi", i)); i++)
        if (is_of(one, "gpu", line) && number(one, "id", 0) == (long long)fresh_id) { fresh_id++; i = -1; }
    char added[512], key[96];
    snprintf(key, sizeof key, "%s/%u", get(line, "uuid"), fresh_id);
    snprintf(added, sizeof added, "gi\tkey=%s\tgpu=%s\tid=%u\tprofile=%u\tstart=%u\tsize=%u", key,
             get(line, "uuid"), fresh_id, id, at->start, at->size);
    rewrite(NULL, added);
    *to = gi_handle(key);
    crash_after("nvmlDeviceCreateGpuInstanceWithPlacement");
out:
    if (file >= 0) close(file);
    pthread_mutex_unlock(&lock);
    return result;
}
int nvmlDeviceGetGpuInstances(Device device, unsigned id, void **to, unsigned *count) {
    ON("nvmlDeviceGetGpuInstances", device, gpu_of)
    if (number(line, "mig", 0) != 1) FAIL(NOT_SUPPORTED);
    Line *one;
    *count = 0;
    for (int i = 0; (one = find("gi", i)); i++)
        if (is_of(one, "gpu", line) && number(one, "profile", -1) == (long long)id)
            to[(*count)++] = gi_handle(get(one, "key"));
    LEAVE
}
static int is_in(const Line *mig, const Line *gi) {
    return get(mig, "parent") && !strcmp(get(mig, "parent"), get(gi, "gpu")) &&
           number(mig, "gi", -1) == number(gi, "id", -2);
}
/* A call on a GPU instance. */
#define IN(name, instance) \
    pthread_mutex_lock(&lock); \
    load(); \
    Line *gi = gi_of(instance); \
    int result = fault(name, get(gi, "gpu")); \
    if (result == OK && !initialised) result = UNINITIALIZED; \
    if (result == OK && !(gi = gi_of(instance))) result = NOT_FOUND;
int nvmlGpuInstanceDestroy(void *instance) {
    IN("nvmlGpuInstanceDestroy", instance)
    int file = changing();
    load();
    gi = gi_of(instance);
    if (result == OK && !gi) result = NOT_FOUND;
    Line *one;
    for (int i = 0; result == OK && (one = find("mig", i)); i++)
        if (is_in(one, gi)) result = IN_USE;
    if (result == OK) {
        char drop[512];
        snprintf(drop, sizeof drop, "gi\tkey=%s\t", get(gi, "key"));
        rewrite(drop, NULL);
        crash_after("nvmlGpuInstanceDestroy");
    }
    pthread_mutex_unlock(&lock);
    close(file);
    return result;
}
/* The compute instance profiles with 1, 2, 3, 4 and 7 slices. */
static unsigned compute_slices(unsigned index) { return index < 5 ? (unsigned[]){1, 2, 3, 4, 7}[index] : 0; }
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *instance, unsigned index, unsigned engines,
                                                  ComputeInstanceProfile *to) {
    IN("nvmlGpuInstanceGetComputeInstanceProfileInfoV", instance)
    if (result == OK) {
        Line *gpu = by("gpu", "uuid", get(gi, "gpu"));
        Line *profile = profile_of(gpu, "id", (unsigned)number(gi, "profile", 0));
        unsigned slices = compute_slices(index);
        if (index >= 8 || engines) result = INVALID_ARGUMENT;
        else if (!slices || (long long)slices > number(profile, "slices", 1)) result = NOT_SUPPORTED;
        else {
            to->id = index;
            to->slices = slices;
            to->most = (unsigned)number(profile, "slices", 1) / slices;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}
int nvmlGpuInstanceGetComputeInstances(void *instance, unsigned id, void **to, unsigned *count) {
    IN("nvmlGpuInstanceGetComputeInstances", instance)
    Line *one;
    *count = 0;
    for (int i = 0; result == OK && (one = find("mig", i)); i++)
        if (is_in(one, gi) && number(one, "compute_profile", 0) == (long long)id)
            to[(*count)++] = handle(get(one, "uuid"));
    pthread_mutex_unlock(&lock);
    return result;
}
int nvmlComputeInstanceGetInfo_v2(void *compute, ComputeInstanceInfo *to) {
    ENTER("nvmlComputeInstanceGetInfo_v2")
    Line *line = mig_of(compute);
    if (!line) FAIL(NOT_FOUND);
    memset(to, 0, sizeof *to);
    to->device = handle(get(line, "parent"));
    to->id = (unsigned)number(line, "ci", 0);
    to->profile = (unsigned)number(line, "compute_profile", 0);
    LEAVE
}
int nvmlGpuInstanceCreateComputeInstance(void *instance, unsigned id, void **to) {
    IN("nvmlGpuInstanceCreateComputeInstance", instance)
    int file = changing();
    load();
    gi = gi_of(instance);
    if (result == OK && !gi) result = NOT_FOUND;
    Line *one;
    unsigned index = 0;
    for (int i = 0; result == OK && (one = find("mig", i)); i++) {
        if (is_in(one, gi)) result = NO_ROOM; /* this stub divides no GPU instance further */
        if (!strcmp(get(one, "parent"), get(gi, "gpu")) && number(one, "index", 0) == (long long)index) {
            index++;
            i = -1;
        }
    }
    if (result == OK) {
        Line *gpu = by("gpu", "uuid", get(gi, "gpu"));
        Line *profile = profile_of(gpu, "id", (unsigned)number(gi, "profile", 0));
        char added[1024], uuid[96];
        snprintf(uuid, sizeof uuid, "MIG-%.8s-0000-5000-8000-%06x%06x", get(gi, "gpu") + 4,
                 (unsigned)number(gi, "id", 0), 0);
        snprintf(added, sizeof added,
                 "mig\tuuid=%s\tparent=%s\tindex=%u\tgi=%u\tci=0\tcompute_profile=%u\tname=%s %s\tprofile_id=%u"
                 "\tstart=%u\tsize=%u\tmemory=%lld\tmemory_mib=%u\tmultiprocessors=%u\tgi_slices=%u\tci_slices=%u"
                 "\tcopy=%u\tdecoder=%u\tjpeg=%u\tofa=%u",
                 uuid, get(gi, "gpu"), index, (unsigned)number(gi, "id", 0), id, get(gpu, "name"),
                 get(profile, "name"), (unsigned)number(gi, "profile", 0), (unsigned)number(gi, "start", 0),
                 (unsigned)number(gi, "size", 1), number(profile, "memory", 0) << 20,
                 (unsigned)number(profile, "memory", 0), (unsigned)number(profile, "sm", 0),
                 (unsigned)number(profile, "slices", 1), compute_slices(id), (unsigned)number(profile, "copy", 0),
                 (unsigned)number(profile, "decoder", 0), (unsigned)number(profile, "jpeg", 0),
                 (unsigned)number(profile, "ofa", 0));
        rewrite(NULL, added);
        *to = handle(uuid);
        crash_after("nvmlGpuInstanceCreateComputeInstance");
    }
    pthread_mutex_unlock(&lock);
    close(file);
    return result;
}
int nvmlComputeInstanceDestroy(void *compute) {
    pthread_mutex_lock(&lock);
    load();
    Line *line = mig_of(compute);
    int result = fault("nvmlComputeInstanceDestroy", get(line, "parent"));
    int file = changing();
    load();
    if (result == OK && !(line = mig_of(compute))) result = NOT_FOUND;
    if (result == OK) {
        char drop[512];
        snprintf(drop, sizeof drop, "mig\tuuid=%s\t", get(line, "uuid"));
        rewrite(drop, NULL);
        crash_after("nvmlComputeInstanceDestroy");
    }
    pthread_mutex_unlock(&lock);
    close(file);
    return result;
}

int nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, unsigned *to) {
    ON("nvmlDeviceGetTopologyCommonAncestor", a, gpu_of)
    Line *other = gpu_of(b), *near;
    if (!other) FAIL(INVALID_ARGUMENT);
    *to = (unsigned)number(find("system", 0), "topology", 50);
    for (int i = 0; (near = find("near", i)); i++) {
        const char *x = get(near, "a"), *y = get(near, "b"), *u = get(line, "uuid"), *v = get(other, "uuid");
        if ((!strcmp(x, u) && !strcmp(y, v)) || (!strcmp(x, v) && !strcmp(y, u)))
            *to = (unsigned)number(near, "level", 50);
    }
    LEAVE
}
/* Link number `link` of a GPU: its peer's line, or NULL. The links of a GPU are numbered through its link lines. */
static Line *peer(Line *gpu, unsigned link, int *to_switch) {
    unsigned next = 0;
    Line *line;
    for (int i = 0; (line = find("link", i)); i++) {
        const char *a = get(line, "a"), *b = get(line, "b"), *own = get(gpu, "uuid");
        if (strcmp(a, own) && strcmp(b, own)) continue;
        unsigned count = (unsigned)number(line, "count", 1);
        if (link >= next && link < next + count) {
            const char *other = strcmp(a, own) ? a : b;
            *to_switch = !strcmp(other, "switch");
            return *to_switch ? line : by("gpu", "uuid", other);
        }
        next += count;
    }
    return NULL;
}
int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *to) {
    ON("nvmlDeviceGetNvLinkState", device, gpu_of)
    int to_switch;
    if (link >= MAX_LINKS) FAIL(INVALID_ARGUMENT);
    if (!find("link", 0)) FAIL(NOT_SUPPORTED);
    *to = peer(line, link, &to_switch) != NULL;
    LEAVE
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned *to) {
    ON("nvmlDeviceGetNvLinkRemoteDeviceType", device, gpu_of)
    int to_switch;
    if (!peer(line, link, &to_switch)) FAIL(NOT_SUPPORTED);
    *to = to_switch ? 2 : 0;
    LEAVE
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, Pci *to) {
    ON("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, gpu_of)
    int to_switch;
    unsigned function;
    Line *other = peer(line, link, &to_switch);
    if (!other) FAIL(NOT_SUPPORTED);
    memset(to, 0, sizeof *to);
    const char *bus = to_switch ? "00000000:C1:00.0" : get(other, "bus");
    if (sscanf(bus, "%x:%x:%x.%x", &to->domain, &to->bus, &to->device, &function) != 4) FAIL(UNKNOWN);
    snprintf(to->bus_id, sizeof to->bus_id, "%08X:%02X:%02X.%u", to->domain, to->bus, to->device, function & 7);
    LEAVE
}

static Set *fresh(void) {
    for (int i = 0; i < MAX_SETS; i++)
        if (!sets[i].used) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].used = 1;
            Line *line; /* what happened before does not count */
            for (int k = 0; (line = find("event", k)); k++)
                if (number(line, "seq", 0) > sets[i].seen) sets[i].seen = number(line, "seq", 0);
            for (int k = 0; (line = find("sysevent", k)); k++)
                if (number(line, "seq", 0) > sets[i].seen) sets[i].seen = number(line, "seq", 0);
            return &sets[i];
        }
    return NULL;
}
int nvmlEventSetCreate(Set **to) {
    ENTER("nvmlEventSetCreate")
    if (!(*to = fresh())) FAIL(MEMORY);
    LEAVE
}
int nvmlEventSetFree(Set *set) {
    ENTER("nvmlEventSetFree")
    set->used = 0;
    LEAVE
}
int nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *to) {
    ON("nvmlDeviceGetSupportedEventTypes", device, gpu_of)
    *to = (unsigned long long)number(line, "events", 65439);
    LEAVE
}
int nvmlDeviceRegisterEvents(Device device, unsigned long long types, Set *set) {
    ON("nvmlDeviceRegisterEvents", device, gpu_of)
    if (types & ~(unsigned long long)number(line, "events", 65439)) FAIL(NOT_SUPPORTED);
    if (set->gpu_count == 64) FAIL(MEMORY);
    snprintf(set->gpus[set->gpu_count++], 96, "%s", get(line, "uuid"));
    set->types |= types;
    LEAVE
}
static int registered(const Set *set, const char *uuid) {
    for (int i = 0; i < set->gpu_count; i++)
        if (!strcmp(set->gpus[i], uuid)) return 1;
    return 0;
}
/* The oldest event of a kind that the set has not seen, or NULL. */
static Line *next_event(Set *set, const char *word) {
    Line *line, *oldest = NULL;
    for (int i = 0; (line = find(word, i)); i++) {
        long long seq = number(line, "seq", 0);
        if (seq <= set->seen || !(set->types & (unsigned long long)number(line, "type", 8))) continue;
        if (!strcmp(word, "event") && !registered(set, get(line, "gpu"))) continue;
        if (!oldest || seq < number(oldest, "seq", 0)) oldest = line;
    }
    if (oldest) set->seen = number(oldest, "seq", 0);
    return oldest;
}
static Line *await(Set *set, const char *word, const char *call, unsigned timeout_ms, int *result) {
    for (unsigned waited = 0;; waited += 5) {
        if ((*result = fault(call, NULL)) != OK) return NULL;
        if (!initialised) { *result = UNINITIALIZED; return NULL; }
        Line *line = next_event(set, word);
        if (line) return line;
        if (waited >= timeout_ms) { *result = TIMEOUT; return NULL; }
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
        pthread_mutex_lock(&lock);
    }
}
int nvmlEventSetWait_v2(Set *set, Event *to, unsigned timeout_ms) {
    ENTER("nvmlEventSetWait_v2")
    Line *line = await(set, "event", "nvmlEventSetWait_v2", timeout_ms, &result);
    if (!line) goto out;
    to->device = handle(get(line, "gpu"));
    to->type = number(line, "type", 8);
    to->data = number(line, "data", 0);
    to->gi = (unsigned)number(line, "gi", 0xffffffff);
    to->ci = (unsigned)number(line, "ci", 0xffffffff);
    LEAVE
}
int nvmlSystemEventSetCreate(SetRequest *request) {
    ENTER("nvmlSystemEventSetCreate")
    if (!number(find("system", 0), "sysevents", 1)) FAIL(NOT_SUPPORTED);
    if (!(request->set = fresh())) FAIL(MEMORY);
    LEAVE
}
int nvmlSystemEventSetFree(SetRequest *request) {
    ENTER("nvmlSystemEventSetFree")
    request->set->used = 0;
    LEAVE
}
int nvmlSystemRegisterEvents(RegisterRequest *request) {
    ENTER("nvmlSystemRegisterEvents")
    request->set->types |= request->types;
    LEAVE
}
int nvmlSystemEventSetWait(WaitRequest *request) {
    ENTER("nvmlSystemEventSetWait")
    request->count = 0;
    Line *line = await(request->set, "sysevent", "nvmlSystemEventSetWait", request->timeout_ms, &result);
    if (!line) goto out;
    request->events[0].type = number(line, "type", 1);
    request->events[0].gpu = (unsigned)number(line, "gpu", 0);
    request->count = 1;
    LEAVE
}
